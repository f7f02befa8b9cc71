"""Sources beyond a folder with a CSV file: class folders, glob patterns, tables of any kind, Hugging Face datasets."""

import csv
import io
import sys
import unicodedata
import warnings

import numpy as np
import pytest
from PIL import Image

from promptcal import api
from promptcal.data import ImageSet, read_labels
from promptcal.data.store import decode
from promptcal.errors import DataError, LabelError, PromptCALWarning


def picture(seed=0, size=12):
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def make(root, *names):
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(seed)).save(root / name)
    return root


def labels_by_name(images, labels=None):
    return dict(zip(images.names, read_labels(labels, images), strict=True))


def source_labels(source):
    images = ImageSet.of(source)
    with pytest.warns(PromptCALWarning, match="labels are taken from"):
        return labels_by_name(images)


@pytest.fixture
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# -- class folders beside an unlabelled one -------------------------------------------------------------------


@pytest.mark.parametrize("unlabelled", ["unlabelled", "unlabeled", "Unlabelled"])
def test_class_folders_beside_an_unlabelled_one_give_labels(tmp_path, unlabelled):
    make(tmp_path, "blue tit/1.png", "blue tit/deep/er/2.jpg", "ü/3.png", "at the root.png", f"{unlabelled}/4.png",
         f"{unlabelled}/ü/5.png")  # fmt: skip
    assert source_labels(tmp_path) == {
        "at the root.png": None,
        "blue tit/1.png": "blue tit",
        "blue tit/deep/er/2.jpg": "blue tit",
        f"{unlabelled}/4.png": None,
        f"{unlabelled}/ü/5.png": None,
        "ü/3.png": "ü",
    }


def test_both_spellings_are_unlabelled_and_deeper_ones_are_not(tmp_path):
    make(tmp_path, "cat/unlabelled/1.png", "unlabelled/2.png", "unlabeled/3.png")
    assert list(source_labels(tmp_path).values()) == ["cat", None, None]


def test_linked_class_folders_and_images_have_the_name_of_the_link(tmp_path):
    make(tmp_path / "elsewhere", "x/1.png", "x/2.png")
    root = make(tmp_path / "images", "unlabelled/3.png", "dog/4.png")
    (root / "cat").symlink_to(tmp_path / "elsewhere" / "x")
    (root / "dog" / "linked.png").symlink_to(tmp_path / "elsewhere" / "x" / "1.png")
    found = source_labels(root)
    assert found == {"cat/1.png": "cat", "cat/2.png": "cat", "dog/4.png": "dog", "dog/linked.png": "dog",
                     "unlabelled/3.png": None}  # fmt: skip


def test_the_unlabelled_folder_may_be_empty_or_a_link(tmp_path):
    make(tmp_path / "a", "cat/1.png", "2.png")
    (tmp_path / "a" / "unlabelled").mkdir()
    assert source_labels(tmp_path / "a") == {"2.png": None, "cat/1.png": "cat"}
    make(tmp_path / "b", "cat/1.png")
    (tmp_path / "b" / "unlabelled").symlink_to(make(tmp_path / "elsewhere", "9.png"))
    assert source_labels(tmp_path / "b") == {"cat/1.png": "cat", "unlabelled/9.png": None}


def test_accents_of_class_folders_are_composed(tmp_path):
    make(tmp_path, unicodedata.normalize("NFD", "Käfer/1.png"), "unlabelled/2.png")
    assert "Käfer" in source_labels(tmp_path).values()


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "names",
    [
        ["cat/1.png", "dog/2.png"],
        ["unlabelled/1.png", "2.png"],
        ["unlabelled/1.png", ".hidden/2.png"],
        ["cat/unlabelled/1.png", "dog/2.png"],
        ["unlabelled.png", "cat/2.png"],
    ],
)
def test_folders_are_not_labels_without_an_unlabelled_folder_beside_them(tmp_path, names):
    make(tmp_path, *names)
    (tmp_path / "empty").mkdir()
    assert set(labels_by_name(ImageSet.of(tmp_path)).values()) == {None}


@pytest.mark.usefixtures("silent")
def test_a_label_file_wins_over_the_folders(tmp_path):
    root = make(tmp_path / "images", "cat/1.png", "unlabelled/2.png")
    (tmp_path / "labels.csv").write_text("path,label\nunlabelled/2.png,owl\n")
    images = ImageSet.of(root)
    assert labels_by_name(images, tmp_path / "labels.csv") == {"cat/1.png": None, "unlabelled/2.png": "owl"}
    assert set(labels_by_name(images, {}).values()) == {None}


def test_a_subset_keeps_its_source_labels(tmp_path):
    make(tmp_path, "a/1.png", "b/2.png", "unlabelled/3.png")
    images = ImageSet.of(tmp_path).subset([2, 1])
    with pytest.warns(PromptCALWarning):
        assert read_labels(None, images) == [None, "b"]


def test_fit_and_predict_take_class_folders_and_patterns(tmp_path, small_set, quick_settings, promptcal):
    images, _, labels = small_set
    for i, image in enumerate(images):
        folder = tmp_path / "photos" / (f"class {labels[i]}" if labels[i] >= 0 else "unlabelled")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:03d}.png")
    settings = (*quick_settings, "warmup.epochs=1", "affinity.epochs=1")
    arguments = [part for setting in settings for part in ("--set", setting)]
    output = ["--output", tmp_path / "run", "-q", "--no-report"]
    code, _, err = promptcal("fit", tmp_path / "photos", "--n-classes", 4, *output, *arguments)
    assert code == 0, err
    assert [line for line in err.splitlines() if "labels are taken from" in line]
    with (tmp_path / "run" / "assignments.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 48
    for row in rows:
        top = row["path"].split("/")[0]
        assert (row["labelled"] == "yes") == (top != "unlabelled")
        assert row["labelled"] == "no" or row["name"] == top
    found = api.predict(run=tmp_path / "run", images=f"{tmp_path}/photos/class*/*.png", progress=False)
    assert found.paths == [row["path"] for row in rows if row["path"].startswith("class")]


# -- glob patterns --------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    seen = ["a.jpg", "b.png", "x/c.jpg", "x/y/ü d.jpg", "x/y/e.PNG", "[1]/f.jpg"]
    return make(tmp_path / "my photos", *seen, ".h/g.jpg", ".i.jpg", "x/.j.jpg")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jpg", ["a.jpg"]),
        ("*", ["a.jpg", "b.png"]),
        ("?.[jp]*g", ["a.jpg", "b.png"]),
        ("*/*.jpg", ["[1]/f.jpg", "x/c.jpg"]),
        ("**/*.jpg", ["[1]/f.jpg", "a.jpg", "x/c.jpg", "x/y/ü d.jpg"]),
        ("**", ["[1]/f.jpg", "a.jpg", "b.png", "x/c.jpg", "x/y/e.PNG", "x/y/ü d.jpg"]),
        ("**/y/**/*.jpg", ["x/y/ü d.jpg"]),
        ("**/**/c.*", ["x/c.jpg"]),
        ("[[]1]/*", ["[1]/f.jpg"]),
        (".*", [".i.jpg"]),
        ("./*.png", ["b.png"]),
        (unicodedata.normalize("NFD", "**/ü*"), ["x/y/ü d.jpg"]),
    ],
)
@pytest.mark.parametrize("kind", [str, lambda p: p.__class__(p)])
def test_a_pattern_gives_names_below_its_fixed_part(photos, pattern, names, kind):
    images = ImageSet.of(kind(f"{photos}/{pattern}"))
    assert images.names == names
    assert images.root == photos
    assert [images.image(i).size for i in range(len(images))] == [(12, 12)] * len(names)


def test_a_pattern_from_here_and_deeper_roots(photos, monkeypatch):
    monkeypatch.chdir(photos)
    assert ImageSet.of("*.png").names == ["b.png"]
    assert ImageSet.of("x/y/*").names == ["e.PNG", "ü d.jpg"]
    monkeypatch.setenv("HOME", str(photos))
    assert ImageSet.of("~/x/*.jpg").names == ["c.jpg"]


def test_labels_match_the_names_of_a_pattern(photos):
    images = ImageSet.of(f"{photos}/x/**/*.jpg")
    found = labels_by_name(images, {"c.jpg": "cat", f"{photos}/x/y/ü d.jpg": "dog"})
    assert found == {"c.jpg": "cat", "y/ü d.jpg": "dog"}


def test_a_folder_or_file_with_brackets_in_its_name_is_no_pattern(tmp_path):
    make(tmp_path / "photos [2020]", "a*.jpg")
    assert ImageSet.of(tmp_path / "photos [2020]").names == ["a*.jpg"]
    assert ImageSet.of(tmp_path / "photos [2020]" / "a*.jpg").names == ["a*.jpg"]


@pytest.mark.timeout(10)
def test_patterns_follow_links_but_not_in_circles(tmp_path):
    make(tmp_path / "elsewhere", "2.png")
    root = make(tmp_path / "images", "a/1.png")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    for i in range(5):
        (root / f"self{i}").symlink_to(root)
        (root / "a" / f"up{i}").symlink_to("..")
    assert ImageSet.of(f"{root}/**/*.png").names == ["a/1.png", "link/2.png"]
    assert ImageSet.of(f"{root}/*/*.png").names == ["a/1.png", "link/2.png"]


def test_a_pattern_without_matches_is_an_error(photos):
    (photos / "notes.txt").write_text("")
    for pattern in ("*.gif", "*.txt", "x*", "z/*"):
        with pytest.raises(DataError, match=r"matches no images|of the pattern .* does not exist"):
            ImageSet.of(f"{photos}/{pattern}")


# -- tables of labels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize(
    "text",
    [
        "path\tlabel\nb.png\tcat, big\nx/c.jpg\t\n",
        "path;label\nb.png;cat, big\n",
        'path,label\nb.png,"cat, big"\n',
        "\ufeffpath\tnote, long\tlabel\r\nb.png\t\tcat, big\r\nx/c.jpg\tsome\t-1\r\n",
        '"label"; "path"\ncat, big; b.png\n',
        " path \t label \n b.png \t cat, big \n",
        "label;path\rcat, big;b.png\r",
    ],
)
def test_the_header_determines_the_separator_and_the_suffix_does_not(photos, tmp_path, text, suffix):
    (tmp_path / f"labels.{suffix}").write_bytes(text.encode())
    found = labels_by_name(ImageSet.of(photos), tmp_path / f"labels.{suffix}")
    assert {name: label for name, label in found.items() if label} == {"b.png": "cat, big"}


def write_parquet(file, **columns):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet labels need promptcal[parquet]")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), file)
    return file


@pytest.mark.parametrize("name", ["labels.parquet", "labels", "labels.csv"])
def test_parquet_labels_are_read_whatever_the_suffix(photos, tmp_path, name):
    file = write_parquet(tmp_path / name, id=[1, 2, 3, 4], label=["cat", None, "", "猫"],
                         path=["a.jpg", "b.png", "./x/c.jpg", "x/y/ü d.jpg"])  # fmt: skip
    found = labels_by_name(ImageSet.of(photos), file)
    assert {n: label for n, label in found.items() if label} == {"a.jpg": "cat", "x/y/ü d.jpg": "猫"}


def test_parquet_numbers_are_class_names(photos, tmp_path):
    images = ImageSet.of(photos).subset([1, 2, 3])
    file = write_parquet(tmp_path / "l.parquet", path=images.names, label=np.array([3.0, np.nan, -1.0]))
    assert read_labels(file, images) == ["3", None, None]
    file = write_parquet(tmp_path / "l.parquet", path=images.names, label=np.array([3, -1, 7]))
    assert read_labels(file, images) == ["3", None, "7"]


def test_pandas_parquet_with_categories_is_read(photos, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is only one of the writers of parquet")
    pytest.importorskip("pyarrow", reason="parquet labels need promptcal[parquet]")
    frame = pandas.DataFrame(
        {"label": pandas.Categorical(["cat", None])}, index=pandas.Index(["a.jpg", "b.png"], name="path")
    )
    frame.to_parquet(tmp_path / "l.parquet")
    assert labels_by_name(ImageSet.of(photos), tmp_path / "l.parquet")["a.jpg"] == "cat"


def test_parquet_files_that_do_not_fit_are_refused_with_the_remedy(photos, tmp_path):
    images, file = ImageSet.of(photos), tmp_path / "l.parquet"
    write_parquet(file, path=["a.jpg"], kind=["cat"])
    with pytest.raises(LabelError, match=r"l\.parquet needs the columns path and label; it has 'path, kind'"):
        read_labels(file, images)
    write_parquet(file, path=["a.jpg", None], label=["cat", "dog"])
    with pytest.raises(LabelError, match=r"row 2 of .*l\.parquet has no path"):
        read_labels(file, images)
    write_parquet(file, path=["ghost.jpg"], label=["cat"])
    with pytest.raises(LabelError, match=r"a label for ghost\.jpg"):
        read_labels(file, images)
    for content in (b"path,label\na.jpg,cat\n", b"PAR1 and nothing more", b""):
        file.write_bytes(content)
        with pytest.raises(LabelError, match=r"l\.parquet is not a readable parquet file"):
            read_labels(file, images)


def test_without_pyarrow_the_command_to_install_it_is_named(photos, tmp_path, monkeypatch):
    (tmp_path / "l.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LabelError, match=r"pip install 'promptcal\[parquet\]'"):
        read_labels(tmp_path / "l.parquet", ImageSet.of(photos))


# -- Hugging Face datasets ------------------------------------------------------------------------------------


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    return pytest.importorskip("datasets", reason="Hugging Face datasets need promptcal[huggingface]")


def png(seed):
    file = io.BytesIO()
    Image.fromarray(picture(seed)).save(file, "png")
    return file.getvalue()


def dataset_of(datasets, label=None, values=None, column="image", n=4):
    features = {column: datasets.Image(), **({} if label is None else {"label": label})}
    columns = {column: [{"bytes": png(i), "path": None} for i in range(n)]} | (
        {} if label is None else {"label": values}
    )
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_a_dataset_gives_its_images_and_class_names(datasets):
    data = dataset_of(datasets, datasets.ClassLabel(names=["cat", "blue tit"]), [1, -1, None, 0])
    images = ImageSet.of(data)
    assert all(np.array_equal(images.image(i), picture(i)) for i in range(4))
    assert images.names == [f"image-{i:06d}" for i in range(4)]
    assert list(source_labels(data).values()) == ["blue tit", None, None, "cat"]
    assert labels_by_name(images, ["a", None, "b", -1])["image-000002"] == "b"


def test_a_dataset_may_be_filtered_formatted_and_of_any_column_name(datasets):
    data = dataset_of(datasets, datasets.Value("string"), ["a", "", None, "b"], column="photo")
    data = data.with_format("numpy").select([3, 1])
    images = ImageSet.of(data)
    assert np.array_equal(images.image(0), picture(3))
    assert list(source_labels(data).values()) == ["b", None]


def test_numbers_are_labels_and_lists_are_not(datasets):
    numbers = dataset_of(datasets, datasets.Value("int64"), [5, -1, None, 7])
    assert list(source_labels(numbers).values()) == ["5", None, None, "7"]
    lists = dataset_of(datasets, datasets.Sequence(datasets.Value("int64")), [[1], [2], [], [3]])
    assert ImageSet.of(lists).source_labels is None
    assert ImageSet.of(dataset_of(datasets)).source_labels is None


def test_a_column_of_a_dataset_is_a_sequence_of_labels(datasets):
    data = dataset_of(datasets, datasets.ClassLabel(names=["cat", "dog"]), [1, -1, 0, 0])
    assert read_labels(data["label"], ImageSet.of(data)) == ["1", None, "0", "0"]


def test_a_dataset_of_files_and_of_broken_rows(datasets, tmp_path):
    make(tmp_path, "a.png", "b.png")
    (tmp_path / "broken.png").write_text("no image")
    paths = [str(tmp_path / f"{name}.png") if name else None for name in ("a", "broken", "gone", None, "b")]
    data = datasets.Dataset.from_dict({"image": paths}, features=datasets.Features({"image": datasets.Image()}))
    store, kept, faults = decode(ImageSet.of(data), 12, skip_unreadable=True)
    assert kept == [0, 4]
    assert [name for name, _ in faults] == ["image-000001", "image-000002", "image-000003"]
    assert "no image" in faults[2][1]
    assert np.array_equal(store.image(1), picture(1))


def test_other_datasets_are_refused_with_the_remedy(datasets):
    data = dataset_of(datasets)
    two = datasets.concatenate_datasets([data.rename_column("image", c) for c in ("left", "right")], axis=1)
    for source, message in (
        (datasets.DatasetDict(train=data, test=data), r"of splits \(train, test\).*dataset\['train'\]"),
        (data.to_iterable_dataset(), "without streaming"),
        (data.select([]), "no rows"),
        (datasets.Dataset.from_dict({"text": ["a"]}), "no image column among text"),
        (two, "image columns left, right; keep one"),
    ):
        with pytest.raises(DataError, match=message):
            ImageSet.of(source)
