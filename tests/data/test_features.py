"""Feature files of every format hold the same rows; whatever is wrong with one is a sentence."""

import csv
import os
import zipfile

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from promptcal.data import feature_files
from promptcal.data.feature_set import FeatureSet
from promptcal.errors import DataError

ROWS = np.random.default_rng(0).normal(size=(23, 5)).astype(np.float32)
IDS = [f"a/{i}.png" for i in range(23)]
UNIT = ROWS / np.linalg.norm(ROWS.astype(np.float64), axis=1, keepdims=True)


def arrow_table(kind="float", ids="id", fixed=True, rows=ROWS):
    numbers = pyarrow.array(rows.reshape(-1).astype({"half": np.float16, "float": np.float32}.get(kind, np.float64)))
    if fixed:
        lists = pyarrow.FixedSizeListArray.from_arrays(numbers, rows.shape[1])
    else:
        lists = pyarrow.ListArray.from_arrays(np.arange(0, rows.size + 1, rows.shape[1]), numbers)
    return pyarrow.table({ids: IDS[: len(rows)], "score": np.arange(len(rows)), "embedding": lists})


def write_csv(path, ids=True, header=True, separator=","):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        if header:
            writer.writerow([*(["Image ID"] if ids else []), *(f"f{i}" for i in range(5))])
        writer.writerows([*([IDS[i]] if ids else []), *map(repr, map(float, row))] for i, row in enumerate(ROWS))


def write_stream(path):
    table = arrow_table()
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=4):
            writer.write_batch(batch)


WRITERS = {
    "x.npy": lambda path: np.save(path, ROWS),
    "double.npy": lambda path: np.save(path, ROWS.astype(np.float64)),
    "x.npz": lambda path: np.savez(path, features=ROWS, ids=np.array(IDS), other=np.eye(3)),
    "packed.npz": lambda path: np.savez_compressed(path, only=ROWS),
    "half.parquet": lambda path: pyarrow.parquet.write_table(arrow_table("half"), path),
    "float.parquet": lambda path: pyarrow.parquet.write_table(arrow_table("float", "path"), path, row_group_size=7),
    "double.parquet": lambda path: pyarrow.parquet.write_table(arrow_table("double", fixed=False), path),
    "x.arrow": lambda path: pyarrow.feather.write_feather(arrow_table(), path, chunksize=4),
    "stream.arrow": write_stream,
    "x.safetensors": lambda path: save_file({"embeddings": torch.from_numpy(ROWS), "b": torch.ones(2)}, path),
    "bf16.safetensors": lambda path: save_file({"x": torch.from_numpy(ROWS).bfloat16()}, path),
    "x.csv": write_csv,
    "plain.csv": lambda path: write_csv(path, ids=False, header=False),
    "x.tsv": lambda path: write_csv(path, separator="\t"),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("block_bytes", [8 * 5 * 3, 2**24])
def test_every_format_has_the_same_rows(tmp_path, monkeypatch, name, block_bytes):
    monkeypatch.setattr(feature_files, "_BLOCK_BYTES", block_bytes)
    WRITERS[name](tmp_path / name)
    found = FeatureSet.of(tmp_path / name)
    tolerance = 0.01 if name.startswith(("half", "bf16")) else 1e-6
    seen = []
    assert np.abs(found.embeddings(on_progress=seen.append).numpy() - UNIT).max() < tolerance
    assert seen[-1] == 23
    assert found.has_ids == (name in ("x.npz", "x.csv", "x.tsv") or name.endswith((".parquet", ".arrow")))
    assert found.names == (IDS if found.has_ids else [str(i) for i in range(23)])


def test_rows_that_do_not_fit_into_memory_are_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr("promptcal.data.feature_set.free_host_memory", lambda: 10.0)
    features = FeatureSet.of(ROWS)
    assert np.abs(features.embeddings(tmp_path).numpy() - UNIT).max() < 1e-6
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="of memory; give fewer rows"):
        features.embeddings()


def test_huge_and_tiny_numbers_keep_their_direction():
    rows = np.array([[3e300, 4e300], [3e-300, 4e-300]])
    assert FeatureSet.of(rows).embeddings().numpy() == pytest.approx(np.array([[0.6, 0.8]] * 2))


def test_arrays_tensors_and_data_frames(tmp_path):
    pandas = pytest.importorskip("pandas")
    for given in (ROWS, torch.from_numpy(ROWS), ROWS.tolist(), pandas.DataFrame(ROWS)):
        assert FeatureSet.of(given).names == [str(i) for i in range(23)]
    assert FeatureSet.of(pandas.DataFrame(ROWS, index=IDS)).names == IDS
    (tmp_path / "ids.txt").write_text("\n".join(IDS))
    assert FeatureSet.of(ROWS, ids=tmp_path / "ids.txt").names == FeatureSet.of(ROWS, ids=IDS).names == IDS


def changed(row, column, value):
    rows = ROWS.copy()
    rows[row, column] = value
    return rows


BAD = {
    "row 3 of .* has a value that is NaN": lambda path: np.save(path / "x.npy", changed(3, 1, np.nan)),
    "row 4 \\(a/4.png\\) of .* NaN or infinite": lambda path: np.savez(
        path / "x.npz", x=changed(4, 0, np.inf), id=np.array(IDS)
    ),
    "row 2 of .* has only zeros": lambda path: np.save(path / "x.npy", changed(2, slice(None), 0)),
    "holds Python objects, which are never unpickled": lambda path: np.save(path / "x.npy", ROWS.astype(object)),
    "x in .* holds Python objects": lambda path: np.savez(path / "x.npz", x=ROWS.astype(object)),
    "ids in .* holds Python objects": lambda path: np.savez(path / "x.npz", x=ROWS, ids=np.array(IDS, dtype=object)),
    "features are numbers": lambda path: np.save(path / "x.npy", ROWS.astype("U5")),
    "has the shape \\(23,\\)": lambda path: np.save(path / "x.npy", ROWS[:, 0]),
    "has the shape \\(0, 5\\)": lambda path: np.save(path / "x.npy", ROWS[:0]),
    "several tables of numbers \\(a, b\\)": lambda path: np.savez(path / "x.npz", a=ROWS, b=ROWS),
    "stored by columns": lambda path: np.save(path / "x.npy", np.asfortranarray(ROWS)),
    "has the id a/0.png twice": lambda path: np.savez(path / "x.npz", x=ROWS, id=np.array([*IDS[:-1], IDS[0]])),
    "has 3 ids for 23 rows": lambda path: np.savez(path / "x.npz", x=ROWS, id=np.array(IDS[:3])),
    "row 2 of .* has no id": lambda path: np.savez(path / "x.npz", x=ROWS, id=np.array([IDS[0], "", *IDS[2:]])),
    "has 'a' where a number is expected": lambda path: (path / "x.csv").write_text("id,f\n1,2\n2,a\n"),
    "line 3 of .* has 3 values instead of 2": lambda path: (path / "x.csv").write_text("id,f\n1,2\n2,3,4\n"),
    "0 rows of 1 numbers": lambda path: (path / "x.csv").write_text("id,f\n"),
    "different lengths": lambda path: pyarrow.parquet.write_table(
        pyarrow.table({"id": ["a", "b"], "x": [[1.0, 2.0], [1.0]]}), path / "x.parquet"
    ),
    "no table of numbers \\(id, x\\)": lambda path: pyarrow.parquet.write_table(
        pyarrow.table({"id": ["a"], "x": [1.0]}), path / "x.parquet"
    ),
    "has empty values": lambda path: pyarrow.parquet.write_table(
        pyarrow.table({"x": [[1.0, 2.0], None]}), path / "x.parquet"
    ),
    "format of .* is not known": lambda path: (path / "x.pkl").write_bytes(b""),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_features_are_a_sentence(tmp_path, message):
    BAD[message](tmp_path)
    with pytest.raises(DataError, match=message):
        FeatureSet.of(next(tmp_path.iterdir())).embeddings()


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "float.parquet", "x.arrow", "x.safetensors", "x.csv"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_files_are_a_sentence(tmp_path, name, share):
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    if name == "x.csv" and share:
        path.write_text(path.read_text().rpartition(",")[0])  # a whole number is a whole number; a lost column is not
    with pytest.raises(DataError, match="^[^\n]*; [^\n]*$"):
        FeatureSet.of(path).embeddings()


def test_a_file_that_is_truncated_while_it_is_read_is_a_sentence(tmp_path):
    """If it was mapped, the process would be killed."""
    np.save(tmp_path / "x.npy", np.ones((200_000, 5)))
    features = FeatureSet.of(tmp_path / "x.npy")
    blocks = features.table.blocks()
    assert len(next(blocks)) < 200_000
    os.truncate(tmp_path / "x.npy", 3_000_007)
    with pytest.raises(DataError, match="rows instead of 200000; it was truncated"):
        list(blocks)


@pytest.mark.parametrize("shape", ["(-1, 3)", "(0, 3)", "(3, -2)", "(1000000000000, 3)", "(True, 3)"])
def test_shapes_that_no_file_has_are_a_sentence(tmp_path, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8))
    with pytest.raises(DataError, match=r"features are rows x numbers|is truncated"):
        FeatureSet.of(tmp_path / "x.npy")


def test_an_archive_that_says_more_rows_than_it_has_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", x=ROWS)
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        data = archive.read("x.npy")
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("x.npy", data.replace(b"(23, 5)", b"(93, 5)"))
    with pytest.raises(DataError, match="another size than its header says"):
        FeatureSet.of(tmp_path / "y.npz")


def test_an_archive_that_expands_a_thousand_fold_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((2_000_000, 5), np.float32))
    assert (tmp_path / "x.npz").stat().st_size < 100_000
    with pytest.raises(DataError, match="expands to over 200 times its size"):
        FeatureSet.of(tmp_path / "x.npz")


@pytest.mark.parametrize("kind", ["float.parquet", "x.npy"])
def test_more_rows_than_have_names_in_memory_are_refused(tmp_path, kind, monkeypatch):
    WRITERS[kind](tmp_path / kind)
    monkeypatch.setattr(feature_files, "free_host_memory", lambda: 64.0 * 22)
    with pytest.raises(DataError, match="has 23 rows, whose names alone need"):
        FeatureSet.of(tmp_path / kind)


def test_pictures_are_found_by_id_with_or_without_the_suffix(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/0.png", "b.JPG"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    features = FeatureSet.of(ROWS[:2], ids=["a/0", "b"])
    assert [p.name for p in features.pictures(tmp_path).source.files] == ["0.png", "b.JPG"]
    with pytest.raises(DataError, match="no image for the id c"):
        FeatureSet.of(ROWS[:2], ids=["b", "c"]).pictures(tmp_path)
    with pytest.raises(DataError, match="no ids"):
        FeatureSet.of(ROWS).pictures(tmp_path)
    (tmp_path.parent / "outside.png").write_bytes((tmp_path / "a/0.png").read_bytes())
    with pytest.raises(DataError, match="lies outside"):
        FeatureSet.of(ROWS[:1], ids=["../outside.png"]).pictures(tmp_path)


def test_rows_without_pictures_are_shown_by_their_ids():
    shown = [FeatureSet.of(ROWS[:2], ids=ids).pictures(None) for ids in (["a", "b"], ["c", "é\U0001f600"])]
    tiles = [np.asarray(images.image(0)) for images in shown]
    assert tiles[0].shape == (96, 96, 3)
    assert shown[0].size(0) == shown[1].subset([1]).size(0) == (96, 96)  # without drawing it
    assert not np.array_equal(*tiles)
