"""Sources and folders of shards from somebody else: one sentence, no endless read, nothing outside the output."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shard_helpers import BACKBONE, rows_of, write_parquet, write_tar

from promptcal import api
from promptcal.errors import DataError, PromptCALError, RunError
from promptcal.runtime import reading
from promptcal.shards import locations
from promptcal.shards.find_shards import find_shards
from promptcal.shards.shard_folder import ShardFolder

WIDTH = 192


@pytest.fixture
def predict(run, tmp_path):
    def call(source):
        return api.predict_shards(run=run, source=source, output=tmp_path / "out", workers=1, progress=False)

    return call


def fill_tar(file, names, content, format=tarfile.PAX_FORMAT, **changes):
    with tarfile.open(file, "w", format=format) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for attribute, value in changes.items():
                setattr(member, attribute, value)
            tar.addfile(member, io.BytesIO(content))


TARS = {
    "half a surrogate pair": (["a\udce4.png"], {"format": tarfile.GNU_FORMAT}, "is not a short text"),
    "a very long name": (["a" * 5000 + ".png"], {}, "is not a short text"),
    "no name": ([" .png"], {}, "has no id"),
    "a size that no file has": (["a.png"], {"pax_headers": {"size": "9" * 23}}, "is truncated or no uncompressed tar"),
    "a negative size": (["a.png"], {"pax_headers": {"size": "-5"}}, "is truncated or no uncompressed tar"),
    "holes": (
        ["a.png"],
        {"pax_headers": {"GNU.sparse.map": "0,1", "GNU.sparse.size": "9", "GNU.sparse.name": "a.png"}},
        "is truncated or no uncompressed tar",
    ),
}


@pytest.mark.parametrize("kind", TARS)
def test_hostile_tars(predict, run, pictures, tmp_path, kind):
    names, changes, message = TARS[kind]
    fill_tar(tmp_path / "x.tar", names, pictures["000"], **changes)
    with pytest.raises(DataError, match=message):
        predict(tmp_path / "x.tar")
    with pytest.raises(DataError, match=message):
        api.fit(images=tmp_path / "x.tar", sample=5, n_classes=2, output=tmp_path / "run", progress=False)


@pytest.mark.parametrize("size", [10**18, 2**62, -(10**18)])
def test_a_member_beyond_the_end_of_its_tar(predict, tmp_path, size):
    member = tarfile.TarInfo("a.png")
    member.size = size
    (tmp_path / "x.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + b"\0" * 2048)
    with pytest.raises(DataError, match="is truncated or no uncompressed tar"):
        predict(tmp_path / "x.tar")


def test_links_and_devices_in_a_tar_are_ignored(predict, pictures, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo(f"{ord(kind)}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        member = tarfile.TarInfo("../../outside.png")
        member.size = len(pictures["000"])
        tar.addfile(member, io.BytesIO(pictures["000"]))
    assert predict(tmp_path / "x.tar").rows == 1
    assert rows_of(tmp_path / "out").column("id").to_pylist() == ["../../outside"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "x.tar"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file_system", ["file://", "local://", "simplecache::file://"])
def test_a_url_of_a_pipe_is_refused(tmp_path, file_system):
    os.mkfifo(tmp_path / "pipe.png")
    url = f"{file_system}{tmp_path}/pipe.png"
    with pytest.raises(DataError, match="cannot be read .it is a pipe or a device"), locations.opened(url):
        pass
    with pytest.raises(OSError, match="it is a pipe or a device"):
        locations.read_location(url)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:no image is labelled")
def test_pipes_devices_and_folders_instead_of_files(predict, run, pictures, tmp_path):
    """A pipe would be read for ever, and /dev/zero until the memory is full."""
    folder = tmp_path / "tars"
    folder.mkdir()
    write_tar(folder / "good.tar", {"a": pictures["000"]})
    os.mkfifo(folder / "pipe.tar")
    (folder / "folder.tar").mkdir()
    with pytest.raises(DataError, match="cannot be read .it is a (folder|pipe or a device)"):
        predict(folder)
    assert len(list((tmp_path / "out" / "shards").iterdir())) == 1  # that of the good one
    paths = {"id": ["a", "b", "c"], "path": ["/dev/zero", str(folder / "pipe.tar"), str(folder)]}
    write_parquet(tmp_path / "paths.parquet", paths)
    (tmp_path / "list.txt").write_text("\n".join(paths["path"]))
    for source in ("paths.parquet", "list.txt"):
        shutil.rmtree(tmp_path / "out")
        with pytest.raises(DataError, match="none of the 3 images .* it is a pipe or a device"):
            predict(tmp_path / source)
        given = {"sample": 5, "n_classes": 2, "backbone": BACKBONE, "progress": False}
        with pytest.raises(DataError, match="it is a (folder|pipe or a device)"):
            api.fit(images=tmp_path / source, output=tmp_path / "run", **given)


def test_an_image_larger_than_any_image(monkeypatch, predict, pictures, tmp_path):
    monkeypatch.setattr(reading, "MAX_IMAGE", 1000)
    (tmp_path / "x.png").write_bytes(pictures["000"] + b"\0" * 1000)
    write_parquet(tmp_path / "x.parquet", {"id": ["a"], "path": [str(tmp_path / "x.png")]})
    write_tar(tmp_path / "x.tar", {"a": (tmp_path / "x.png").read_bytes()})
    for source in ("x.parquet", "x.tar"):
        with pytest.raises(DataError, match="it has over 0 MB"):
            predict(tmp_path / source)
        shutil.rmtree(tmp_path / "out")


def features(values, width=WIDTH):
    return pa.FixedSizeListArray.from_arrays(pa.array(values), width)


SOME = np.random.default_rng(0).normal(size=2 * WIDTH).astype(np.float32)
BAD_IDS = {
    "missing": [None, "b"],
    "blank": [" ", "b"],
    "NUL": ["a\0", "b"],
    "long": ["a" * 5000, "b"],
    "lists": [["a"], ["b"]],
    "records": [{"x": 1}, {"x": 2}],
    "not Unicode": [b"\xff", b"b"],
}


@pytest.mark.parametrize("kind", BAD_IDS)
def test_bad_ids(predict, run, pictures, embedded, tmp_path, kind):
    images = {"id": BAD_IDS[kind], "image": [pictures["000"], pictures["001"]]}
    write_parquet(tmp_path / "images.parquet", images)
    message = "has no id|is not a short text|an id is a text or a number|no readable parquet"
    with pytest.raises(DataError, match=message):
        predict(tmp_path / "images.parquet")
    with pytest.raises(DataError, match=message):
        api.fit(images=tmp_path / "images.parquet", sample=5, n_classes=2, output=tmp_path / "run", progress=False)
    write_parquet(tmp_path / "embeddings.parquet", {"id": BAD_IDS[kind], "embedding": features(SOME)})
    with pytest.raises(DataError, match=message):
        predict_embeddings(embedded, tmp_path / "embeddings.parquet", tmp_path / "out-2")
    (tmp_path / "folder").mkdir()
    (tmp_path / "embeddings.parquet").rename(tmp_path / "folder" / "0.parquet")
    with pytest.raises(DataError, match=message):
        api.cluster(features=tmp_path / "folder", n_classes=2, output=tmp_path / "run", progress=False)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """A run on features of `WIDTH` numbers."""
    path = tmp_path_factory.mktemp("features") / "run"
    rows = np.random.default_rng(1).normal(size=(12, WIDTH))
    api.cluster(features=rows, n_classes=2, output=path, report=False, progress=False)
    return path


def predict_embeddings(run, source, output):
    return api.predict_shards(run=run, source=source, output=output, workers=1, progress=False)


BAD_TABLES = {
    "two columns of one name": pa.table([["a", "b"], ["c", "d"], features(SOME)], names=["id", "id", "embedding"]),
    "two embeddings": pa.table([["a", "b"], features(SOME), features(SOME)], names=["id", "embedding", "embedding"]),
    "records": pa.table({"id": ["a", "b"], "embedding": features([{"x": 1.0}] * 2 * WIDTH)}),
    "texts": pa.table({"id": ["a", "b"], "embedding": features(["1"] * 2 * WIDTH)}),
    "times": pa.table({"id": ["a", "b"], "embedding": features(pa.array([0] * 2 * WIDTH, pa.timestamp("s")))}),
    "no rows": pa.table({"id": pa.array([], pa.string()), "embedding": features(SOME[:0])}),
}


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_bad_embeddings(embedded, tmp_path, kind):
    (tmp_path / "folder").mkdir()
    pq.write_table(BAD_TABLES[kind], tmp_path / "folder" / "0.parquet")
    message = "two columns of the same name|needs the columns id and embedding|has no rows"
    with pytest.raises(DataError, match=message):
        api.cluster(features=tmp_path / "folder", n_classes=2, output=tmp_path / "run", progress=False)
    if kind != "no rows":
        with pytest.raises(DataError, match=message):
            predict_embeddings(embedded, tmp_path / "folder", tmp_path / "out")


def test_images_with_two_columns_of_one_name(predict, pictures, tmp_path):
    pq.write_table(pa.table([["a"], [pictures["000"]], ["b"]], names=["id", "image", "id"]), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="has two columns of the same name"):
        predict(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["图" * 80, "m² ½ e\u0301 \u0660 🐦", "-x", ".x", "a\\b", "\u202ex"])
def test_a_folder_with_another_name(predict, pictures, tmp_path, name):
    """80 letters of 3 bytes each are more than a name of a file may have together with what is added to it."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "a.png").write_bytes(pictures["000"])
    assert predict(folder).rows == 1


def test_a_list_with_an_endless_line(predict, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a" * 2**17)
    with pytest.raises(DataError, match="has a line of over 65,536 bytes"):
        predict(tmp_path / "x.txt")


@pytest.fixture
def finished(predict, pictures, tmp_path):
    """A folder of two finished shards, one of which will be computed again."""
    folder = tmp_path / "tars"
    folder.mkdir()
    for i, name in enumerate(("000", "001")):
        write_tar(folder / f"{i}.tar", {name: pictures[name]})
    predict(folder)
    (tmp_path / "out" / "manifest.json").unlink()
    return tmp_path / "out"


def entry_of_first(out):
    return min((out / "entries").iterdir())


@pytest.mark.parametrize("name", ["../../evil", "/tmp/promptcal-evil", "a/b", "..", ".x", "", "a" * 300, "x\n"])
def test_a_shard_whose_name_leads_out(predict, finished, tmp_path, name):
    """Of a folder from somebody else that is given as output, or whose shards are read."""
    plan = json.loads((finished / "plan.json").read_text())
    plan["shards"][0]["name"] = name
    (finished / "plan.json").write_text(json.dumps(plan))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError, match=r"plan\.json is damaged"):
        predict(tmp_path / "tars")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("rows", [-1, 10**24, 2**40])
def test_numbers_of_rows(predict, finished, tmp_path, rows):
    entry = entry_of_first(finished)
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"rows": rows}))
    with pytest.raises(RunError, match="is damaged"):
        predict(tmp_path / "tars")


@pytest.mark.parametrize("name", ["shards", "entries", "lists"])
def test_a_linked_folder_of_shards_is_refused(predict, finished, tmp_path, name):
    shutil.rmtree(finished / name, ignore_errors=True)
    (tmp_path / "outside").mkdir()
    (finished / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match=f"{name} is a link to another place"):
        predict(tmp_path / "tars")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_something_else_at_the_name_of_a_shard(promptcal, run, finished, tmp_path, kind):
    """No space is missing, and the same command would fail for ever: the exit code is not 75."""
    entry = entry_of_first(finished)
    entry.unlink()
    os.mkfifo(entry) if kind == "pipe" else entry.mkdir()
    words = ["predict", run.path, tmp_path / "tars", "--output", finished, "--workers", "1", "--quiet"]
    code, _, said = promptcal(*words)
    assert code == 2
    assert "make the output writable, then run the same command again" in " ".join(said.split())


BAD_COLUMNS = {
    "negative": ("cluster", [-1]),
    "missing": ("cluster", pa.array([None], pa.int32())),
    "text": ("cluster", ["x"]),
    "lists": ("cluster", [[1]]),
    "not finite": ("confidence", [float("nan")]),
    "no decision": ("decision", pa.array([None], pa.string())),
    "another column": ("decision", None),
}


@pytest.mark.parametrize("kind", BAD_COLUMNS)
def test_damaged_rows_in_the_numbers_of_all_images(predict, run, finished, tmp_path, kind):
    predict(tmp_path / "tars")
    name, values = BAD_COLUMNS[kind]
    file = min((finished / "shards").iterdir())
    table = pq.read_table(file)
    place = table.schema.get_field_index(name)
    table = table.drop_columns([name]) if values is None else table.set_column(place, name, pa.array(values))
    pq.write_table(table, file)
    with pytest.raises(PromptCALError, match="is damaged|is no readable parquet file|categories that the run does not"):
        api.make_report(run=run, shards=finished, output=tmp_path / "r.html", progress=False)


@pytest.mark.parametrize("kind", ["lists", "not Unicode", "long", "absent"])
def test_damaged_ids_of_a_finished_shard(predict, finished, tmp_path, kind):
    file = min((finished / "shards").iterdir())
    table = pq.read_table(file)
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")])
    ids = {"lists": pa.array([["a"]]), "not Unicode": bad, "long": pa.array(["a" * 20_000]), "absent": None}[kind]
    table = table.drop_columns(["id"]) if ids is None else table.set_column(0, "id", ids)
    pq.write_table(table, file)
    entry = entry_of_first(finished)
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"bytes": file.stat().st_size}))
    with pytest.raises(DataError, match="is damaged|is no readable parquet file"):
        predict(tmp_path / "tars")


def test_a_number_of_processes_that_is_none(promptcal, run, tars, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "x")
    code, _, said = promptcal("predict", run.path, tars, "--output", tmp_path / "out", "--quiet")
    assert code == 2
    assert "the environment variable WORLD_SIZE is 'x', which is no number; unset it" in " ".join(said.split())


def test_output_that_nobody_reads(run, image_folder):
    """`promptcal predict ... | head`: the exit code is that of other programs, and there is no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "promptcal", "predict", str(run.path), str(image_folder), "--quiet"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_standard_streams(run, image_folder, tmp_path):
    """A program may be started without them; the files that it opens must not get their numbers."""
    words = f"{sys.executable} -m promptcal predict {run.path} {image_folder} --output {tmp_path}/p.csv <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", words]).returncode == 0
    assert (tmp_path / "p.csv").read_text().startswith("path,cluster,")


def test_surrogates_in_a_folder(tmp_path, pictures):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a\udce4.png").write_bytes(pictures["000"])
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="is not a short text; rename it"):
        find_shards([str(tmp_path / "photos")], ShardFolder(tmp_path / "out"), None, size=5, embeddings=False)
