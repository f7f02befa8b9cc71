"""Each format is read back by the program it is for, and equals the assignments."""

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from promptcal import exporters
from promptcal.api import export, fit
from promptcal.data import ImageSet
from promptcal.errors import DataError, RunError


def digests(folder):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def rows_of(run):
    with run.directory.assignments_file.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_assignments_have_the_second_choice_in_the_last_columns(awkward):
    rows, features = rows_of(awkward.run), np.load(awkward.run.directory.embeddings_file)
    assert list(rows[0]) == [
        "path", "cluster", "name", "kind", "confidence", "labelled", "second", "second_confidence",
    ]  # fmt: skip
    centroids = awkward.run.centroids.numpy()
    cosines = features @ (centroids / np.linalg.norm(centroids, axis=1, keepdims=True)).T
    temperature = awkward.run.calibration.temperature
    for row, own in zip(rows, cosines, strict=True):
        shares = np.exp(own / temperature) / np.exp(own / temperature).sum()
        others = [c for c in np.argsort(-shares) if c != int(row["cluster"])]
        assert row["second"] == awkward.run.names[others[0]]
        assert float(row["second_confidence"]) == pytest.approx(shares[others[0]], abs=1e-3)
        assert float(row["confidence"]) == pytest.approx(shares[int(row["cluster"])], abs=1e-3)


def test_names_for_help_need_no_heavy_import():
    """In a fresh process, with the package's own __init__ left out: only `promptcal.report` and `.exporters` count."""
    code = f"""
import sys, types
package = types.ModuleType("promptcal")
package.__path__ = [{str(Path(exporters.__file__).parents[1])!r}]
sys.modules["promptcal"] = package
from promptcal.exporters import FORMATS
from promptcal.report import FIGURE_NAMES
assert "folders" in FORMATS and "tsne" in FIGURE_NAMES
print(*{{"torch", "numpy", "scipy", "sklearn", "matplotlib"}} & set(sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_parquet_is_the_same_table(awkward):
    table = parquet.read_table(awkward.run.directory.assignments_parquet_file).to_pydict()
    rows = rows_of(awkward.run)
    assert list(table) == list(rows[0])
    assert table["path"] == [r["path"] for r in rows]
    assert table["labelled"] == [r["labelled"] == "yes" for r in rows]
    assert np.allclose(table["second_confidence"], [float(r["second_confidence"]) for r in rows], atol=1e-4)


@pytest.mark.parametrize("copy", [False, True])
def test_folders_hold_every_image_in_its_category(awkward, tmp_path, copy):
    before = digests(awkward.images)
    output = tmp_path / "sorted"
    export(run=awkward.run, to="folders", output=output, copy=copy, progress=False)
    names = {c["folder"]: c["name"] for c in json.loads((output / "categories.json").read_text())}
    assert list(names.values()) == awkward.run.names == ["..", "a/b", "new-1", "new-2"]
    assert {p.name for p in output.iterdir()} == {*names, "categories.json"}
    content = {
        hashlib.sha256((awkward.images / r["path"]).read_bytes()).hexdigest(): r["name"] for r in rows_of(awkward.run)
    }
    found = {}
    for file in output.glob("*/*"):
        assert file.is_symlink() != copy
        found[hashlib.sha256(file.read_bytes()).hexdigest()] = names[file.parent.name]
    assert found == content
    assert digests(awkward.images) == before
    assert len(ImageSet.of(output)) == 48  # and promptcal itself reads the folder


def test_hugging_face_reads_its_folder_back(awkward, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    export(run=awkward.run, to="huggingface", output=tmp_path / "hf", progress=False)
    loaded = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "hf"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]  # although a folder of images is called test
    loaded = loaded["train"]
    rows = {r["path"]: r for r in rows_of(awkward.run)}
    assert sorted(loaded["path"]) == sorted(rows)
    for example in loaded:
        row = rows[example["path"]]
        assert (example["label"], example["kind"]) == (row["name"], row["kind"])
        with Image.open(awkward.images / example["path"]) as original:
            assert np.array_equal(np.asarray(example["image"]), np.asarray(original))


def test_fiftyone_layout_names_each_file_by_its_stem(awkward, tmp_path):
    export(run=awkward.run, to="fiftyone-json", output=tmp_path / "fo", progress=False)
    dataset = json.loads((tmp_path / "fo" / "labels.json").read_text())
    by_stem = {os.path.splitext(p.name)[0]: p for p in (tmp_path / "fo" / "data").iterdir()}
    assert set(by_stem) == set(dataset["labels"])
    rows = {(awkward.images / r["path"]).resolve(): r["name"] for r in rows_of(awkward.run)}
    assert {p.resolve(): dataset["classes"][dataset["labels"][stem]] for stem, p in by_stem.items()} == rows


def test_coco_annotates_whole_images(awkward, tmp_path):
    export(run=awkward.run, to="coco", output=tmp_path / "coco.json", progress=False)
    coco = json.loads((tmp_path / "coco.json").read_text())
    names = {c["id"]: c["name"] for c in coco["categories"]}
    kinds = {c["name"]: c["supercategory"] for c in coco["categories"]}
    assert 0 not in names
    images = {i["id"]: i for i in coco["images"]}
    found = {images[a["image_id"]]["file_name"]: names[a["category_id"]] for a in coco["annotations"]}
    assert found == {r["path"]: r["name"] for r in rows_of(awkward.run)}
    assert kinds == {r["name"]: r["kind"] for r in rows_of(awkward.run)}
    for annotation in coco["annotations"]:
        image = images[annotation["image_id"]]
        with Image.open(awkward.images / image["file_name"]) as original:
            assert (image["width"], image["height"]) == original.size == (32, 32)
        assert annotation["bbox"] == [0, 0, 32, 32]
        assert annotation["area"] == 1024


def test_embeddings_and_table_as_parquet(from_array, tmp_path):
    export(run=from_array, to="embeddings", output=tmp_path / "e.parquet")
    table = parquet.read_table(tmp_path / "e.parquet").to_pydict()
    assert np.array_equal(np.array(table["embedding"], np.float32), np.load(from_array.directory.embeddings_file))
    assert table["name"] == from_array.assignments().categories
    export(run=from_array, to="csv", output=tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").column("path").to_pylist() == table["path"]


@pytest.mark.parametrize("to", ["folders", "huggingface", "fiftyone-json", "coco"])
def test_images_from_an_array_have_no_files_to_export(to, from_array, tmp_path):
    with pytest.raises(DataError, match="are not files"):
        export(run=from_array, to=to, output=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_files_listed_relative_to_where_the_fit_ran_are_found(awkward, common_settings, tmp_path, monkeypatch):
    monkeypatch.chdir(awkward.images)
    run = fit(
        images=awkward.names, labels=awkward.labels, n_classes=4, method="kmeans", output=tmp_path / "run",
        overrides=common_settings, progress=False,
            report=False,
        )  # fmt: skip
    monkeypatch.chdir("/")
    assert run.image_files() == [awkward.images / n for n in awkward.names]


@pytest.mark.parametrize("to", ["folders", "csv"])
def test_nothing_is_overwritten(to, awkward, tmp_path):
    output = tmp_path / "mine"
    if to == "folders":
        output.mkdir()
        (output / "precious.txt").write_text("precious")
    else:
        output.write_text("precious")
    before = digests(tmp_path)
    with pytest.raises(RunError, match="not empty|exists already"):
        export(run=awkward.run, to=to, output=output)
    assert digests(tmp_path) == before


def test_an_empty_folder_may_be_filled_and_the_image_folder_may_not(awkward, tmp_path):
    (tmp_path / "empty").mkdir()
    export(run=awkward.run, to="folders", output=tmp_path / "empty", progress=False)
    assert (tmp_path / "empty" / "categories.json").exists()
    with pytest.raises(RunError, match="is inside the image folder"):
        export(run=awkward.run, to="folders", output=awkward.images / "sorted")


def test_an_image_that_is_gone_leaves_no_half_export(awkward, tmp_path):
    gone = awkward.images / awkward.names[7]
    content = gone.read_bytes()
    gone.unlink()
    try:
        with pytest.raises(DataError, match=f"{gone.name} does not exist any more"):
            export(run=awkward.run, to="folders", output=tmp_path / "sorted", progress=False)
    finally:
        gone.write_bytes(content)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--to", "excel"], "there is no export format 'excel'; choose one of folders, csv"),
        (["--to", "csv", "--copy"], "--copy copies images"),
        (["--to", "csv", "--output", "nowhere/x.csv"], "does not exist; create it first"),
    ],
)
def test_bad_requests_are_one_sentence(promptcal, awkward, tmp_path, arguments, named):
    code, out, err = promptcal("export", awkward.run.path, "--output", tmp_path / "x", *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_wrote(promptcal, awkward, tmp_path):
    code, out, _ = promptcal("export", awkward.run.path, "--to", "csv", "--output", tmp_path / "t.csv", "--quiet")
    assert code == 0
    assert Path(out.split("Written to ")[1].replace("\n", "")) == tmp_path / "t.csv"
    assert (tmp_path / "t.csv").read_text() == awkward.run.directory.assignments_file.read_text()
