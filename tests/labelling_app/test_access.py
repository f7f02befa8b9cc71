"""Who may use the server: forged addresses, foreign pages, missing tokens, paths that lead out, names with scripts."""

import io
import json
import shutil
import socket
import time

import numpy as np
import pytest
from PIL import Image
from serving import served

from promptcal.app.access import Access
from promptcal.app.hub import Hub
from promptcal.app.pictures import Pictures
from promptcal.app.server import bind, bound_server
from promptcal.errors import ConfigError, RunError
from promptcal.run.directory import RunDirectory
from promptcal.run.inference import Run

SCRIPT = "<script>window.stolen=1</script>"


@pytest.fixture(scope="module")
def client(finished_run, tmp_path_factory):
    """One server for all requests that change nothing, or only names."""
    with served(shutil.copytree(finished_run, tmp_path_factory.mktemp("served") / "run")) as found:
        yield found


def test_the_token_of_the_link_is_stored_in_a_cookie_that_scripts_and_other_sites_cannot_use(client):
    status, headers, page = client.ask("GET", f"{client.page}?token={client.token}", Cookie=None, Origin=None)
    assert status == 200
    assert b"<main" in page
    assert headers["Set-Cookie"] == f"promptcal-{client.port}={client.token}; HttpOnly; SameSite=Strict; Path=/"
    assert client.ask("GET", f"{client.page}api/run", Origin=None)[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/assets/main.js", "/api/state", "/api/events", "api/run", "api/events", "api/pages", "image/0/160", "none"],
)
def test_nothing_is_answered_without_the_token(client, path):
    path = path if path.startswith("/") else client.page + path
    for cookie in (None, f"promptcal-{client.port}=wrong", f"promptcal-1={client.token}", "\x01=;,"):
        status, _, content = client.ask("GET", path, Cookie=cookie)
        assert (status, content[:9]) == (401, b"The token")
    assert client.ask("GET", f"{path}?token=wrong", Cookie=None)[0] == 401
    assert client.ask("POST", f"{client.page}api/undo", Cookie=None)[0] == 401


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "evil.example", "127.0.0.1", "127.0.0.1:1", "", "10.0.0.1:{port}"]
)
def test_a_forged_host_is_refused(client, host):
    host = host.format(port=client.port)
    assert client.ask("GET", f"{client.page}api/run", Host=host, Origin=None)[0] == 403
    assert client.ask("POST", f"{client.page}api/undo", Host=host, Origin=f"http://{host}")[0] == 403
    assert client.ask("GET", f"{client.page}?token={client.token}", Host=host, Origin=None)[0] == 403


def test_the_names_of_this_machine_are_its_own(client):
    for host in ("localhost", "127.0.0.1"):
        address = f"{host}:{client.port}"
        assert client.ask("POST", f"{client.page}api/undo", Host=address, Origin=f"http://{address}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", None]
)
def test_a_request_of_another_site_changes_nothing(client, origin):
    origin = origin and origin.format(port=client.port)
    body = {"kind": "rename", "category": 2, "name": "stolen"}
    assert client.ask("POST", f"{client.page}api/action", body, Origin=origin)[0] == 403
    assert "stolen" not in [category["name"] for category in client.get("api/state")["categories"]]


def test_a_browser_that_says_that_another_site_asks_is_believed(client):
    for site in ("cross-site", "same-site"):
        assert client.ask("GET", f"{client.page}api/run", Origin=None, Sec_Fetch_Site=site)[0] == 403
    link = f"{client.page}?token={client.token}"  # the link itself may be clicked anywhere
    assert client.ask("GET", link, Origin=None, Cookie=None, Sec_Fetch_Site="cross-site")[0] == 200


def test_a_program_may_send_the_token_itself(client):
    bearer = f"Bearer {client.token}"
    assert client.ask("POST", f"{client.page}api/undo", Origin=None, Cookie=None, Authorization=bearer)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "image/../../run.json/160", "image/..%2f..%2frun.json/160", "image/-1/160", "image/48/160", "image/0/161",
        "image/0/100000", "image/1e3/160", "image/%2e%2e/160", "run.json", "labels.sqlite", "../labels.sqlite",
        "//etc/passwd", f"image/{'9' * 5000}/160", f"image/0/{'9' * 5000}", "image/%D9%A3/160",
    ],
)  # fmt: skip
def test_no_path_leads_to_another_file(client, path):
    status, _, content = client.ask("GET", client.page + path)
    assert status in (400, 404)
    assert b"root:" not in content
    assert b"SQLite" not in content


@pytest.mark.parametrize(
    "path", ["/assets/../routes.py", "/assets/..%2froutes.py", "/assets/index.html", "/assets/", "/r/../api/run"]
)
def test_only_the_files_of_the_page_are_assets(client, path):
    assert client.ask("GET", path)[0] in (400, 404)


def test_a_run_that_names_files_outside_its_folder_is_refused(run_path):
    directory = RunDirectory(run_path)
    text = directory.assignments_file.read_text().replace("000.png", "../../000.png", 1)
    directory.assignments_file.write_text(text)
    directory.update_info(sha256={})
    hub = Hub(run_path)
    with pytest.raises(RunError, match="outside of its image folder; do not trust it"):
        hub.workspace("run")


def test_only_pictures_are_shown_never_the_bytes_of_a_file(run_path, tmp_path):
    """A file of the image folder that was replaced by something else is not sent."""
    folder = shutil.copytree(RunDirectory(run_path).info().folder, tmp_path / "images")
    (folder / "000.png").write_text("a secret")
    (folder / "001.png").unlink()
    (folder / "001.png").symlink_to("/etc/passwd")
    RunDirectory(run_path).update_info(folder=str(folder))
    with served(run_path) as client:
        for image in (0, 1):
            status, headers, content = client.ask("GET", f"{client.page}image/{image}/160")
            assert (status, headers["X-Original"], headers["Content-Type"]) == (200, "no", "image/png")
            assert b"secret" not in content
            assert b"root:" not in content


def test_every_answer_forbids_inline_scripts_frames_and_sniffing(client):
    paths = ["/", client.page, "/assets/main.js", f"{client.page}api/run", f"{client.page}image/0/160", "/nothing"]
    for path in paths:
        _, headers, _ = client.ask("GET", path)
        policy = headers["Content-Security-Policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
    page = client.ask("GET", client.page)[2].decode()
    assert "<script>" not in page
    assert " style=" not in page
    assert " onclick" not in page


def test_a_report_from_somebody_else_has_no_access_to_the_app(run_path):
    (run_path / "report.html").write_text(f"<h1>report</h1>{SCRIPT}")
    with served(run_path) as client:
        status, headers, content = client.ask("GET", f"{client.page}report")
        assert status == 200
        assert SCRIPT.encode() in content
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("sandbox ")
        assert "allow-same-origin" not in policy  # so its origin is null, which is refused


def test_names_are_sent_as_json_only(client):
    client.act("rename", category=2, name=SCRIPT)
    _, headers, content = client.ask("GET", f"{client.page}api/state")
    assert headers["Content-Type"] == "application/json"
    assert json.loads(content)["categories"][2]["name"] == SCRIPT
    assert SCRIPT.encode() not in client.ask("GET", client.page)[2]


def test_too_large_and_malformed_requests_are_refused(client):
    assert "not an action" in client.post("api/action", b"\xff", 400)["error"]
    assert "over 32 MB" in client.post("api/action", b" " * 32_000_001, 400)["error"]
    assert client.ask("GET", f"{client.page}api/action")[0] == 405
    assert client.ask("GET", "/r/other/api/run")[0] == 400


def test_a_port_in_use_is_said(client):
    with pytest.raises(
        ConfigError, match=f"port {client.port} of 127.0.0.1 cannot be used .*; choose another with --port"
    ):
        bind("127.0.0.1", client.port)
    with bind("127.0.0.1", None) as first, bind("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]


@pytest.mark.parametrize("host", ["\u202e", "a" * 300, "300.1.1.1", "\0", "a b"])
def test_a_host_that_is_none_is_said(host):
    with pytest.raises(ConfigError, match=r"cannot be used .*; choose another with --port"):
        bind(host, 0)


def test_another_host_lets_in_addresses_but_no_foreign_names(run_path):
    with bound_server(Hub(run_path), "0.0.0.0", 0) as server:
        assert server.link.startswith("http://0.0.0.0:")
    checks = Access(None, token="t", host="0.0.0.0", port=80)
    assert checks._is_own_address("192.168.1.7:80")
    assert checks._is_own_address(f"{socket.gethostname()}:80")
    assert not checks._is_own_address("evil.example:80")
    assert not checks._is_own_address("192.168.1.7:81")


def test_thumbnails_are_sharp_and_the_cache_is_bounded(run_path, tmp_path):
    """From originals of 900 pixels: at least 160 pixels, and twice as many for screens with two pixels per point."""
    folder = tmp_path / "large"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (600, 900, 3), dtype=np.uint8)
    names = Run(run_path).assignments().paths
    Image.fromarray(noise).save(folder / names[0])
    for name in names[1:]:
        shutil.copyfile(folder / names[0], folder / name)
    RunDirectory(run_path).update_info(folder=str(folder))
    run = Run(run_path)
    pictures = Pictures(run, run.assignments().paths, max_bytes=300_000)
    for side in (160, 320, 640):
        picture = pictures.get(0, side)
        assert picture.is_original
        with Image.open(io.BytesIO(picture.data)) as image:
            assert image.size == (side, round(side * 2 / 3))
    start = time.process_time()
    assert pictures.get(0, 320) is pictures.get(0, 320)
    for i in range(12):
        pictures.get(i, 320)
        assert pictures.n_bytes <= 300_000 + 100_000
    assert pictures.n_bytes <= 300_000
    print(f"{(time.process_time() - start) / 12:.4f} s of CPU time for a thumbnail")
