"""Labels from CSV files and sequences, matched to images by name."""

import unicodedata

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from promptcal.data import ImageSet, parse_labels, read_labels
from promptcal.data import labels as label_module
from promptcal.data.label_files import path_column_by_values
from promptcal.data.labels import class_numbers
from promptcal.data.sources import FileSource
from promptcal.errors import LabelError, PromptCALWarning

NAMES = ["a.png", "b.png", "sub/c, d.png", "sub/é.png"]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "images"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


@pytest.fixture
def read(folder, tmp_path):
    def read_text(text, images=None):
        file = tmp_path / "labels.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_labels(file, ImageSet.of(folder if images is None else images))

    return read_text


@pytest.mark.parametrize(
    "text",
    [
        'path,label\na.png,cat\n"sub/c, d.png",dog\n',
        '\ufeffpath,label\r\na.png,cat\r\n"sub/c, d.png",dog\r\n',
        'label,path\ncat,a.png\ndog,"sub/c, d.png"',
        'id,path,note,label\n1,a.png,"x, y",cat\n2,"sub/c, d.png",,dog\n',
        ' path , label \n a.png , cat \n"sub/c, d.png", dog\n',
        'path, label\na.png, cat\n"sub/c, d.png", "dog"\n',
        'path,label\n./a.png,cat\n"sub//./c, d.png",dog\n',
        'path,label\na.png,cat\na.png,cat\n\n"sub/c, d.png",dog,\n',
        'path,label\na.png,cat\nb.png,\nsub/é.png,-1\n"sub/c, d.png",dog\n',
        'path,label\nb.png\na.png,cat\nsub/é.png,"  "\n"sub/c, d.png",dog\n',
        'path,label\nb.png,-1.0\na.png,cat\n"sub/c, d.png",dog\n',
    ],
    ids=lambda text: repr(text[:24]),
)
def test_csv_files_are_read_whatever_their_form(read, text):
    assert read(text) == ["cat", None, "dog", None]


def test_labels_may_hold_commas_quotes_and_any_script(read):
    text = 'path,label\na.png,"cat, big"\nb.png,"the ""cat"""\nsub/é.png,猫\n'
    assert read(text) == ["cat, big", 'the "cat"', None, "猫"]
    assert read("path,label\n") == [None] * 4  # only a header


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,cat\na.png,dog\n", "a.png has two labels, 'cat' and 'dog'"),
        ("path,label\na.png,cat\n./a.png,dog\n", "a.png has two labels, 'cat' and 'dog'"),
        ("path,label\na.png,cat\na.png,\n", "a.png has two labels, 'cat' and None"),
        ("path,label,Label\na.png,cat,dog\n", "two columns called label; rename or remove one"),
        ("path,path,label\na.png,b.png,dog\n", "two columns called path; rename or remove one"),
        ("path,colour,size\na.png,cat,9\n", "needs a header with the columns path,label, .*; it has 'path, colour"),
        ("x,colour\nz.png,cat\n", "needs a header with the columns path,label, .*; it has 'x, colour'"),
        ("x,y2\na.png,b.png\n", "needs a header"),  # both columns name images
        ("x,y2\n", "needs a header"),
        ("a.txt,cat\nb.txt,dog\n", "needs a header"),
        ("path,label\nsub/d, c.png,cat\n", r"longer than its header"),
        ("path,label\nsub/c d.png,cat\n", r"a label for sub/c d\.png, but no such image; did you mean sub/c, d\.png\?"),
        ("", "needs a header with the columns path,label, .*; it has 'nothing'"),
        ("path|label\na.png|cat\n", "separated by commas, tabs or semicolons; it has 'path|label'"),
        ("path;label\na.png;cat; big\n", "longer than its header; quote values with semicolons"),
        ("path,label\ngone.png,cat\n", "a label for gone.png, but no such image; write paths relative to the image"),
        ("path,label\ngone.png,x\nlost.png,y\n", r"labels\.csv: there is a label for gone.png and 1 more, but"),
        ("path,label\na.png,cat\n,dog\n", "line 3 of .*labels.csv has no path; fill it in"),
        ("path,label\na.png,cat, big\n", "line 2 of .*labels.csv is longer than its header; quote"),
        ('path,label\na.png,"cat\nb.png,dog\n', "not a readable CSV file"),
        ("path,label\na.png,cat\n".encode("utf-16")[:-1], "save it as UTF-8 CSV"),
        ("path,label\na.png,cat\n".encode("utf-32"), "save it as UTF-8 CSV|needs a header"),
        ("path label\na.png cat\n", "needs a header"),
        ("label\ncat\n", "needs a header"),
        ("path," * 10**5 + "\n", "line 1 of .* has over 100,000 characters; is it a table"),
        ("path,label\na.png,cat\n./a.png,\n", "a.png has two labels"),
        ("path,label\n../../etc/passwd,cat\n", r"a label for \.\./\.\./etc/passwd, but no such image"),
        ("path,label\n/etc/passwd,cat\n", "a label for /etc/passwd, but no such image"),
    ],
)
def test_a_csv_file_that_does_not_fit_is_refused_with_the_remedy(read, text, message):
    with pytest.raises(LabelError, match=message):
        read(text)


def test_a_missing_label_file_is_named(folder, tmp_path):
    with pytest.raises(LabelError, match=r"absent\.csv does not exist; check the path"):
        read_labels(str(tmp_path / "absent.csv"), ImageSet.of(folder))


def test_absolute_paths_inside_the_folder_are_understood(read, folder):
    assert read(f"path,label\n{folder}/a.png,cat\n{folder.parent}/x/../images/b.png,dog\n")[:2] == ["cat", "dog"]
    with pytest.raises(LabelError, match=r"no such image"):
        read(f"path,label\n{folder.parent}/other.png,cat\n")


def test_absolute_paths_of_linked_images_are_understood_either_way(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "elsewhere" / "e.png")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "alias").symlink_to(folder)
    labels = {folder / "link" / "e.png": "through a link", tmp_path / "alias" / "a.png": "through an alias"}
    found = dict(zip(ImageSet.of(folder).names, read_labels(labels, ImageSet.of(folder)), strict=True))
    assert (found["link/e.png"], found["a.png"]) == ("through a link", "through an alias")


@pytest.mark.parametrize(
    "text",
    [
        'filename,class\na.png,cat\n"sub/c, d.png",dog\n',
        "File;Species\na.png;cat\nsub/c, d.png;dog\n",
        'a.png,cat\n"sub/c, d.png",dog\n',
        'path,label\nphotos/2024/a.png,cat\n"photos/2024/sub/c, d.png",dog\n',
        'path,label\nC:\\photos\\A.PNG,cat\n"sub\\c, d.png",dog\n',
        'path,label\nA.png,cat\n"c, d.png",dog\n',
        "Image ID\tClass Name\na\tcat\nsub/c, d\tdog\n",
        "sep=;\n\nfilename;name\na.png;cat\nsub/c, d.png;dog\n",
        'fname,label\na.png,cat\n"sub/c, d.png",dog\n',
        "Bild;Art\na.png;cat\nsub/c, d.png;dog\n",
        "Art\tBild\ncat\tA.PNG\ndog\tphotos/sub/c, d\n",
        "path\tlabel,\na.png\tcat\nsub/c, d.png\tdog\n",
        'a,cat\n"sub/c, d",dog\n',
    ],
    ids=[
        *("other headers", "semicolons", "no header", "a folder before", "backslashes", "letter case, file name only"),
        *("blanks in headers, no suffixes", "lines before the header", "one known header", "two unknown headers"),
        *("unknown headers, labels first", "a comma in the header", "no header, no suffixes"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*(matched by the end|is read as path):promptcal.errors.PromptCALWarning")
def test_label_files_as_people_have_them_are_matched(read, text):
    assert read(text) == ["cat", None, "dog", None]


def test_columns_that_are_recognised_by_their_values_are_named(read):
    message = "has the columns 'Art' and 'Bild'; 'Bild' is read as path, because it names images"
    with pytest.warns(PromptCALWarning, match=message):
        assert read("Art,Bild\ncat,a.png\n")[0] == "cat"
    with pytest.warns(PromptCALWarning, match="is read as path"), pytest.raises(LabelError, match="gone.png, but no"):
        read("Bild,Art\na.png,cat\ngone.png,dog\n")  # most of the values are images


def test_a_column_that_is_called_label_is_no_path_even_if_its_values_are_ids():
    rows = ImageSet([str(i) for i in range(4)], FileSource([]))
    assert path_column_by_values(["row", "label"], [["0", "1"], ["3", "2"]], rows.names.__contains__) == 0
    assert path_column_by_values(["row", "art"], [["0", "1"], ["3", "2"]], rows.names.__contains__) is None


def test_a_match_by_the_end_of_a_path_warns_and_must_be_unambiguous(read, folder):
    with pytest.warns(PromptCALWarning, match=r"1 label has another path .* such as x/A\.png to a\.png"):
        read("path,label\nx/A.png,cat\n")
    Image.new("RGB", (8, 8)).save(folder / "sub" / "a.png")
    with pytest.warns(PromptCALWarning, match="matched by the end"):
        assert read("path,label\nx/sub/a.png,cat\n")[2] == "cat"  # the folder decides
    with pytest.raises(LabelError, match=r"it may be a\.png or sub/a\.png: write the folder too"):
        read("path,label\nother/A.PNG,cat\n")


def test_a_file_of_the_same_name_in_another_folder_is_suggested_but_not_matched(read):
    with pytest.raises(LabelError, match=r"label for other/é\.png, but no such image; did you mean sub/é\.png\?"):
        read("path,label\nother/é.png,cat\n")


def test_text_of_spreadsheet_programs_is_read(read, tmp_path, folder):
    for mark in ("utf-16", "utf-8-sig"):
        (tmp_path / "labels.txt").write_bytes("path\tlabel\nsub/é.png\tcafé\n".encode(mark))
        assert read_labels(tmp_path / "labels.txt", ImageSet.of(folder))[3] == "café"
    with pytest.raises(LabelError, match="line 4 of .* has no path"):
        read("sep=,\n\npath,label\n,cat\n")


@pytest.mark.parametrize("rows_before", [0, 200_000])
def test_a_file_in_windows_1252_is_read_with_a_warning(tmp_path, rows_before):
    images = ImageSet([f"{i}.png" for i in range(rows_before + 1)], FileSource([]))
    text = "path;label\n" + "".join(f"{i}.png;cat\n" for i in range(rows_before)) + f"{rows_before}.png;Bläuling €\n"
    (tmp_path / "labels.csv").write_bytes(text.encode("cp1252"))
    with pytest.warns(PromptCALWarning, match="labels.csv is not UTF-8 and is read as Windows-1252, .*Bläuling €"):
        assert read_labels(tmp_path / "labels.csv", images)[-1] == "Bläuling €"


def test_bytes_that_windows_1252_does_not_have_are_refused(tmp_path, folder):
    (tmp_path / "labels.csv").write_bytes(b"path,label\na.png,caf\x81\n")
    with (
        pytest.warns(PromptCALWarning, match="Windows-1252"),
        pytest.raises(LabelError, match="save it as UTF-8 CSV"),
    ):
        read_labels(tmp_path / "labels.csv", ImageSet.of(folder))


def test_missing_values_of_pandas_are_unlabelled(folder):
    for values in (["cat", pandas.NA, None, float("nan")], pandas.Series(["cat", None, None, None], dtype="string")):
        assert read_labels(values, ImageSet.of(folder)) == ["cat", None, None, None]
    assert read_labels({"a.png": pandas.NaT}, ImageSet.of(folder)) == [None] * 4


def test_a_pandas_series_is_matched_by_its_index_only_if_that_has_names(folder):
    images = ImageSet.of(folder)
    by_position = pandas.Series(["cat", pandas.NA, None, "dog"], index=[7, 5, 3, 1])
    assert read_labels(by_position, images) == ["cat", None, None, "dog"]
    by_name = pandas.Series({"sub/c, d.png": "dog", "a.png": "cat", "b.png": pandas.NA})
    assert read_labels(by_name, images) == ["cat", None, "dog", None]
    parsed = parse_labels(by_name, images)
    assert parsed.removed == [False, True, False, False]
    with pytest.raises(LabelError, match="a label for row-0 and 3 more"):
        read_labels(pandas.Series(["cat"] * 4, index=[f"row-{i}" for i in range(4)]), images)


def test_a_data_frame_is_read_like_a_file(folder):
    images = ImageSet.of(folder)
    missing = [pandas.NA, None, float("nan"), pandas.NaT]
    for value in missing:
        frame = pandas.DataFrame({"Class": ["dog", value], "n": [1, 2], "filename": ["b.png", "a.png"]})
        assert read_labels(frame, images) == [None, "dog", None, None]
    with pytest.raises(LabelError, match="one column path and one column label; it has a, 5"):
        read_labels(pandas.DataFrame({"a": [1], 5: [2]}), images)
    with pytest.raises(LabelError, match="two columns called label; rename or remove one"):
        read_labels(pandas.DataFrame([["a.png", 1, 2]], columns=["path", "label", "label"]), images)


def test_columns_of_a_data_frame_are_recognised_by_their_values_as_in_a_file(folder):
    images, message = ImageSet.of(folder), "the data frame of labels has the columns 'Art' and 'Bild'; 'Bild' is read"
    frame = pandas.DataFrame({"Art": ["cat", "dog"], "Bild": ["a.png", "photos/sub/c, d.png"]}, index=[7, 3])
    with pytest.warns(PromptCALWarning, match=message):
        assert read_labels(frame, images) == ["cat", None, "dog", None]
    with pytest.raises(LabelError, match="one column path and one column label; it has x, y2"):
        read_labels(pandas.DataFrame({"x": ["a.png"], "y2": ["b.png"]}), images)  # both columns name images


@pytest.mark.parametrize("label", [np.zeros(3), torch.zeros(2), [1, 2], {"a": 1}, ("cat",), b"cat", np.array([])])
def test_a_label_that_is_not_a_text_or_a_number_is_refused(label):
    for labels in ([label, None, None, None], {"image-000000": label}):
        with pytest.raises(LabelError, match=f"a text or a number, not {type(label).__name__}"):
            read_labels(labels, ARRAYS)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_match_however_they_are_stored(read, form):
    assert read(unicodedata.normalize(form, "path,label\nsub/é.png,cat\n"))[3] == "cat"


def test_a_class_whose_accents_are_stored_in_two_ways_is_one_class(read):
    found = read("path,label\na.png,caf\u00e9\nb.png,cafe\u0301\n")
    assert found[:2] == ["caf\u00e9"] * 2


def test_images_given_as_a_list_go_by_the_paths_of_the_list(read, folder):
    listed = [f"{folder}/b.png", f"{folder}/a.png"]
    assert read(f"path,label\n{listed[1]},cat\n", listed) == [None, "cat"]
    with pytest.raises(LabelError, match=r"a label for c\.jpg, but no such image; write paths as in .*b\.png"):
        read("path,label\nc.jpg,cat\n", listed)
    assert read(f"path,label\n{folder}/a.png,cat\n", [folder / "a.png"] * 2) == ["cat", "cat"]


ARRAYS = ImageSet.of(np.zeros((4, 8, 8, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (None, [None] * 4),
        ([3, -1, 10, 3], ["3", None, "10", "3"]),
        ([3.0, float("nan"), -1.0, 2.5], ["3", None, None, "2.5"]),
        (["cat", "", "-1", None], ["cat", None, None, None]),
        (np.array([3, -1, 10, 3]), ["3", None, "10", "3"]),
        (np.array([3, np.nan, -1, 10], dtype=np.float32), ["3", None, None, "10"]),
        (np.array(["cat", " ", "-1", "dog"]), ["cat", None, None, "dog"]),
        (np.array(["cat", None, np.nan, 3], dtype=object), ["cat", None, None, "3"]),
        (torch.tensor([3, -1, 10, 3]), ["3", None, "10", "3"]),
        (torch.tensor([3.0, float("nan"), -1.0, 10.0]), ["3", None, None, "10"]),
        ({"image-000001": "cat", "image-000003": np.int64(-1)}, [None, "cat", None, None]),
    ],
)
def test_sequences_and_mappings_name_classes(labels, expected):
    assert read_labels(labels, ARRAYS) == expected


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2, 3], "3 labels do not fit 4 images; give one per image"),
        (np.zeros(5), "5 labels do not fit 4 images"),
        (np.zeros((4, 2)), "a flat sequence"),
        (torch.zeros(4, 1), "a flat sequence"),
        (np.array(3), "a flat sequence"),
        (7, "a flat sequence"),
        ({"image-9": "cat"}, "a label for image-9, but no such image; write paths as in image-000000"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(labels, message):
    with pytest.raises(LabelError, match=message):
        read_labels(labels, ARRAYS)


def test_an_empty_label_in_a_file_or_mapping_removes_a_label(folder, tmp_path):
    file, images = tmp_path / "labels.csv", ImageSet.of(folder)
    absolute = folder / images.names[2]
    file.write_text(f'path,label\n"./{images.names[0]}",\n"{images.names[1]}",owl\n"{absolute}",-1\n')
    parsed = parse_labels(file, images)
    assert parsed.removed == [i in (0, 2) for i in range(len(images))]
    assert parsed.names == [None, "owl", None, None]
    mapping = {"image-000001": "cat", "image-000003": np.int64(-1)}
    assert parse_labels(mapping, ARRAYS).removed == [False, False, False, True]
    for labels in (None, ["cat", None, -1, ""]):  # a sequence cannot omit an image
        assert parse_labels(labels, ARRAYS).removed == [False] * 4


def test_a_label_file_is_parsed_once(folder, tmp_path, monkeypatch):
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat\nb.png,\n")
    calls = []
    read = label_module.read_rows
    monkeypatch.setattr(label_module, "read_rows", lambda path, *more: calls.append(path) or read(path, *more))
    parsed = parse_labels(tmp_path / "labels.csv", ImageSet.of(folder))
    assert (parsed.names, parsed.removed) == (["cat", None, None, None], [False, True, False, False])
    assert len(calls) == 1


def test_class_numbers_follow_natural_order():
    numbers, classes = class_numbers(["10", None, "2", "owl", "Ant", "2", "1"])
    assert classes == ["1", "2", "10", "Ant", "owl"]
    assert numbers.tolist() == [2, -1, 1, 4, 3, 1, 0]
    assert numbers.dtype == np.int64
    numbers, classes = class_numbers([None, None])
    assert (numbers.tolist(), classes) == ([-1, -1], [])
