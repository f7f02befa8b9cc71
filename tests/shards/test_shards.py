"""Each kind of source gives the rows that `predict` gives; a second run skips what is finished."""

import errno
import json
import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import numpy as np
import pytest
from shard_helpers import BACKBONE, rows_of, write_parquet, write_tar

from promptcal import __version__, api
from promptcal.data.image_files import find_images, walk_images
from promptcal.runtime.files import file_digest
from promptcal.shards import locations
from promptcal.shards.shard_folder import ShardFolder

COLUMNS = [
    *("id", "path", "embedding", "cluster", "name", "kind", "confidence", "stability", "second"),
    *("second_confidence", "known_distance", "similarity", "decision"),
]


def predict(run, source, output, **options):
    return api.predict_shards(
        **{"run": run, "source": source, "output": output, "workers": 1, "progress": False, "shard_size": 16} | options
    )


@pytest.fixture(scope="module")
def expected(run, pictures, tmp_path_factory):
    """What `predict` says about the images, by id."""
    folder = tmp_path_factory.mktemp("expected")
    for name, content in pictures.items():
        (folder / f"{name}.png").write_bytes(content)
    found = run.predict(folder, progress=False)
    embeddings = run.embed(folder, progress=False)[1].numpy()
    return {Path(p).stem: i for i, p in enumerate(found.paths)}, found, embeddings


def check_rows(table, run, expected, name_of):
    position, found, embeddings = expected
    rows = [position[name_of(name)] for name in table["id"].to_pylist()]
    assert len(rows) == 40
    assert sorted(rows) == list(range(40))
    assert table.column_names == COLUMNS
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: halffloat>[192]"
    stored = np.array(table["embedding"].to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(stored, embeddings[rows], atol=1e-3)
    assert table["cluster"].to_pylist() == found.clusters[rows].tolist()
    assert table["name"].to_pylist() == [run.names[c] for c in found.clusters[rows]]
    assert table["second"].to_pylist() == [run.names[c] for c in found.second[rows]]
    assert table["decision"].to_pylist() == ["accepted" if found.accepted[r] else "none" for r in rows]
    np.testing.assert_allclose(table["confidence"].to_numpy(), found.confidence[rows], atol=2e-5)
    np.testing.assert_allclose(table["similarity"].to_numpy(), found.similarity[rows], atol=2e-5)
    known = run.centroids.numpy()[np.flatnonzero(run.known)]
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    distance = 1 - (embeddings[rows] @ known.T).max(axis=1)
    np.testing.assert_allclose(table["known_distance"].to_numpy(), distance, atol=2e-5)
    by_category = run.assignments().category_stability()
    np.testing.assert_allclose(table["stability"].to_numpy(), by_category[found.clusters[rows]], atol=1e-6)


def test_folder(run, image_folder, expected, tmp_path):
    summary = predict(run, image_folder, tmp_path / "out")
    assert (summary.n_shards, summary.rows) == (3, 40)
    table = rows_of(tmp_path / "out")
    check_rows(table, run, expected, lambda name: Path(name).stem)
    assert table["id"][0].as_py() == "a/000.png"
    assert table["path"][0].as_py() == str(image_folder / "a/000.png")


def test_tars(run, tars, expected, tmp_path):
    summary = predict(run, tars, tmp_path / "out")
    assert summary.n_shards == 2
    table = rows_of(tmp_path / "out")
    check_rows(table, run, expected, str)
    with fsspec.open(table["path"][0].as_py()) as file:  # a path is what fsspec opens
        assert file.read() == expected_content(tars)


def expected_content(tars):
    with fsspec.open(f"tar://000.png::{tars / '0.tar'}") as file:
        return file.read()


@pytest.mark.parametrize("kind", ["bytes", "struct", "path", "url"])
def test_parquet(run, pictures, image_folder, expected, tmp_path, kind):
    names = list(pictures)
    folder = tmp_path / "parquet"
    folder.mkdir()
    places = [f"photos/{'a' if i < 20 else 'b'}/{name}.png" for i, name in enumerate(names)]
    for i, part in enumerate((slice(0, 25), slice(25, 40))):
        columns = {
            "bytes": {"id": names[part], "image": [pictures[n] for n in names[part]]},
            "struct": {"id": names[part], "image": [{"bytes": pictures[n], "path": None} for n in names[part]]},
            "path": {"key": names[part], "path": [f"../{place}" for place in places[part]]},
            "url": {"id": names[part], "url": [f"file://{tmp_path}/{place}" for place in places[part]]},
        }[kind]
        write_parquet(folder / f"{i}.parquet", columns)
    predict(run, folder, tmp_path / "out")
    check_rows(rows_of(tmp_path / "out"), run, expected, str)


def test_list_of_paths_and_urls(run, pictures, image_folder, expected, tmp_path):
    lines = [str(p.relative_to(tmp_path)) for p in sorted(image_folder.rglob("*.png"))]
    lines[3] = f"file://{tmp_path}/{lines[3]}"
    (tmp_path / "list.txt").write_text("\n".join([*lines[:5], "", *lines[5:]]))
    predict(run, tmp_path / "list.txt", tmp_path / "out")
    check_rows(rows_of(tmp_path / "out"), run, expected, lambda name: Path(name).stem)


def test_remote_tars(run, tars, expected, tmp_path):
    """Through fsspec, as s3:// and gs:// are read."""
    memory = fsspec.filesystem("memory")
    for file in tars.iterdir():
        memory.pipe(f"/bucket/{file.name}", file.read_bytes())
    predict(run, "memory://bucket/*.tar", tmp_path / "out")
    check_rows(rows_of(tmp_path / "out"), run, expected, str)


def test_a_signed_url(run, tars, tmp_path):
    """What follows a question mark is no pattern, and no part of the name of the shard."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/signed/0.tar?Signature=a.b&Key=c", (tars / "0.tar").read_bytes())
    summary = predict(run, "memory://signed/0.tar?Signature=a.b&Key=c", tmp_path / "out")
    assert summary.rows == 20
    assert re.fullmatch(r"0-[0-9a-f]{8}", summary.manifest.shards[0].name)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("https://host/0.tar?X-Amz-Signature=abc", False),
        ("https://host/0.tar?list=[1]&all=*", False),
        ("http://[::1]:8000/0.tar", False),
        ("http://[::1]:8000/*.tar", True),
        ("https://host/*.tar", True),
        ("s3://bucket/[0-9].tar", True),
        ("s3://bucket/what?.tar", False),
        ("s3://bucket/0.tar", False),
        ("photos-?.tar", True),
    ],
)
def test_which_locations_are_patterns(location, expected):
    assert locations.is_pattern(location) is expected


def test_paths_beside_a_signed_list():
    assert locations.beside("https://host/a/list.txt?key=x/y", "0.png") == "https://host/a/0.png"
    assert locations.beside("s3://bucket/what?/", "0.png") == "s3://bucket/what?/0.png"


def test_a_pattern_of_web_addresses(monkeypatch):
    """Their file system takes and gives whole URLs."""

    class Web:
        def glob(self, pattern):
            assert pattern == "https://host/*.tar"
            return ["https://host/1.tar", "https://host/0.tar"]

    monkeypatch.setattr(fsspec, "url_to_fs", lambda location: (Web(), location))
    assert locations.matching("https://host/*.tar") == ["https://host/0.tar", "https://host/1.tar"]


def test_tars_of_a_web_server(run, tars, expected, tmp_path):
    pytest.importorskip("aiohttp")
    handler = partial(SimpleHTTPRequestHandler, directory=tars)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        predict(run, f"{address}/*.tar", tmp_path / "out")
        assert predict(run, f"{address}/0.tar?Signature=abc", tmp_path / "signed").rows == 20
        server.shutdown()
    check_rows(rows_of(tmp_path / "out"), run, expected, str)


def test_remote_folder_of_images(run, image_folder, expected, tmp_path):
    memory = fsspec.filesystem("memory")
    for file in image_folder.rglob("*.png"):
        memory.pipe(f"/photos/{file.relative_to(image_folder)}", file.read_bytes())
    memory.pipe("/photos/a/notes.txt", b"no image")
    predict(run, "memory://photos", tmp_path / "out")
    table = rows_of(tmp_path / "out")
    check_rows(table, run, expected, lambda name: Path(name).stem)
    assert table["id"][0].as_py() == "a/000.png"
    assert table["path"][0].as_py() == "memory://photos/a/000.png"


def test_embed_then_assign(run, tars, expected, tmp_path):
    """Embeddings that are stored first are assigned as the images themselves."""
    api.embed(source=tars, run=run, output=tmp_path / "embedded", workers=1, progress=False)
    predict(run, tmp_path / "embedded", tmp_path / "out")
    table = rows_of(tmp_path / "out")
    position, found, _ = expected
    assert "embedding" not in table.column_names
    rows = [position[name] for name in table["id"].to_pylist()]
    assert table["cluster"].to_pylist() == found.clusters[rows].tolist()
    np.testing.assert_allclose(table["confidence"].to_numpy(), found.confidence[rows], atol=1e-3)


def test_two_processes_write_the_same_files(tars, tmp_path):
    for workers in (1, 2):
        api.embed(source=tars, backbone=BACKBONE, output=tmp_path / str(workers), workers=workers, progress=False)
    one, two = (json.loads((tmp_path / str(n) / "manifest.json").read_text()) for n in (1, 2))
    assert one == two
    assert one["rows"] == 40
    for shard in one["shards"]:
        file = tmp_path / "2" / "shards" / f"{shard['name']}.parquet"
        assert file_digest(file) == shard["sha256"]
        assert file.stat().st_size == shard["bytes"]
    assert set(one["versions"]) >= {"promptcal", "torch", "pyarrow"}


def test_finished_shards_are_skipped_and_new_ones_added(run, tars, pictures, tmp_path):
    predict(run, tars, tmp_path / "out")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "shards").glob("*.parquet")}
    again = predict(run, tars, tmp_path / "out")
    assert (again.skipped, again.rows) == (2, 0)
    write_tar(tars / "2.tar", {"more": pictures["000"]})
    more = predict(run, tars, tmp_path / "out")
    assert (more.skipped, more.rows, more.manifest.rows) == (2, 1, 41)
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_a_shard_without_its_entry_or_cut_short_is_computed_again(run, tars, tmp_path):
    summary = predict(run, tars, tmp_path / "out")
    first, second = (shard.name for shard in summary.manifest.shards)
    whole = summary.folder.file(first).read_bytes()
    summary.folder.file(first).write_bytes(whole[:100])
    summary.folder.entry_file(second).unlink()
    again = predict(run, tars, tmp_path / "out")
    assert (again.skipped, again.rows) == (0, 40)
    assert summary.folder.file(first).read_bytes() == whole


def test_a_shard_that_is_computed_again_renews_the_manifest(run, tars, pictures, tmp_path):
    summary = predict(run, tars, tmp_path / "out")
    name = summary.manifest.shards[1].name
    summary.folder.entry_file(name).unlink()
    write_tar(tars / "1.tar", {"other": pictures["007"], "more": pictures["008"]})
    again = predict(run, tars, tmp_path / "out")
    assert again.manifest.rows == 22
    assert again.manifest.shards[1].sha256 == file_digest(again.folder.file(name))


def test_the_manifest_says_which_version_wrote_each_shard(run, tars, tmp_path):
    """Also if a folder is finished after an upgrade."""
    first = predict(run, tars / "0.tar", tmp_path / "one").folder
    name = first.manifest().shards[0].name
    folder = ShardFolder(tmp_path / "out")
    predict(run, tars, folder.path)
    before = first.entry(name)
    before = before.model_copy(update={"versions": {**before.versions, "promptcal": "0.2.9"}})
    before.write(folder.entry_file(name))
    assert {s.promptcal for s in predict(run, tars, folder.path).manifest.shards} == {"0.2.9", __version__}
    text = folder.manifest_file.read_text()
    folder.manifest_file.write_text(re.sub(r',\s*"promptcal": "[^"]*"\s*}', "}", text))
    assert {s.promptcal for s in folder.manifest().shards} == {""}  # of a manifest without it
    assert {s.promptcal for s in predict(run, tars, folder.path).manifest.shards} == {"0.2.9", __version__}


def test_another_command_that_finishes_a_shard_first(run, tars, tmp_path, monkeypatch):
    """Its last step removes what this command is writing. The shard is finished, so this is no error."""
    expected = predict(run, tars, tmp_path / "out").manifest
    first = tmp_path / "out" / "entries" / f"{expected.shards[0].name}.json"
    entry = first.read_text()
    first.unlink()

    def removed(self, target):
        first.write_text(entry)
        self.unlink()
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", removed)
        again = predict(run, tars, tmp_path / "out")
    assert again.manifest == expected


def test_unreadable_images_are_listed(run, tars, pictures, tmp_path):
    write_tar(tars / "1.tar", {"good": pictures["000"], "bad": b"no image", "empty": b""})
    summary = predict(run, tars, tmp_path / "out")
    assert (summary.rows, summary.unreadable, summary.manifest.unreadable) == (21, 2, 2)
    entry = summary.folder.entry(summary.manifest.shards[1].name)
    assert [fault.id for fault in entry.unreadable] == ["bad", "empty"]
    assert all(fault.reason for fault in entry.unreadable)


def test_an_empty_tar_gives_an_empty_shard(run, tars, tmp_path):
    write_tar(tars / "1.tar", {})
    summary = predict(run, tars, tmp_path / "out")
    assert [shard.rows for shard in summary.manifest.shards] == [20, 0]
    assert rows_of(tmp_path / "out").column_names == COLUMNS


def test_images_are_walked_in_the_order_of_the_list(image_folder):
    (image_folder / "a.png").write_bytes(b"")
    (image_folder / "a-b").mkdir()
    (image_folder / "a-b" / "x.jpg").write_bytes(b"")
    (image_folder / ".hidden.png").write_bytes(b"")
    (image_folder / "a" / "loop").symlink_to(image_folder)
    assert list(walk_images(image_folder)) == find_images(image_folder)
