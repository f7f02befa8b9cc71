"""`promptcal check` on real files: what it prints, what it writes, and its exit code."""

import json

import numpy as np
import pytest
from PIL import Image


def photo(seed=0):
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    """Six images and labels without any problem."""
    folder = tmp_path / "my photos"
    (folder / "[bold] ü").mkdir(parents=True)
    for seed in range(6):
        photo(seed).save(folder / "[bold] ü" / f"{seed}.png")
    rows = [f"[bold] ü/{seed}.png\t{'[red]cat' if seed < 2 else 'dog'}" for seed in range(4)]
    (tmp_path / "labels.tsv").write_text("\n".join(["path\tlabel", *rows]), encoding="utf-8")
    return folder


@pytest.fixture
def check(promptcal):
    return lambda *arguments: promptcal("check", *arguments)


def row(out, name):
    """The cells of a row of the table."""
    return next([c.strip() for c in line.strip("│ ").split("│")] for line in out.splitlines() if name in line)


def test_a_folder_without_problems_exits_with_0(check, folder, tmp_path):
    code, out, err = check(folder, "--labels", tmp_path / "labels.tsv", "--json", tmp_path / "report.json", "--quiet")
    assert (code, err) == (0, "")
    assert row(out, "cat") == ["[red]cat", "2"]
    assert row(out, "unlabelled") == ["unlabelled", "2"]
    assert row(out, "all images") == ["all images", "6"]
    assert "Nothing wrong" in out
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (report["images"], report["labelled"], report["unlabelled"]) == (6, {"dog": 2, "[red]cat": 2}, 2)
    assert report["problems"] == report["warnings"] == report["unreadable"] == report["near_duplicates"] == []


def test_warnings_alone_keep_exit_code_0(check, folder, tmp_path):
    photo(5).resize((20, 20)).save(folder / "tiny [copy].png")
    code, out, _ = check(folder, "--labels", tmp_path / "labels.tsv", "-q")
    assert code == 0
    assert "warning: near duplicates, unlabelled (2 images in 1 group)\n  [bold] ü/5.png ~ tiny [copy].png\n" in out
    assert "warning: tiny (1 image)\n  tiny [copy].png: 20 x 20 pixels\n" in out
    code, out, _ = check(folder, "--labels", tmp_path / "labels.tsv", "-q", "--min-side", 10, "--near-distance", 0)
    assert "tiny (" not in out


def test_problems_exit_with_1_and_are_abbreviated_on_the_terminal_only(check, folder, tmp_path):
    for i in range(8):
        (folder / f"bad {i}.jpg").write_bytes(b"\xff\xd8\xff")
    photo(0).save(folder / "[bold] ü" / "4.png")
    labels = tmp_path / "labels.tsv"
    labels.write_text(labels.read_text(encoding="utf-8") + "\n[bold] ü/4.png\tdog\n", encoding="utf-8")
    code, out, _ = check(folder, "--labels", labels, "--json", tmp_path / "report.json", "-q")
    assert code == 1
    assert "problem: cannot be read (8 files)\n  bad 0.jpg: " in out
    assert "and 3 more; --json FILE lists all" in out
    assert "bad 5.jpg" not in out
    assert "remove them, or add --skip-unreadable" in out
    assert "[bold] ü/0.png ([red]cat) = [bold] ü/4.png (dog)" in out
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [u["path"] for u in report["unreadable"]] == [f"bad {i}.jpg" for i in range(8)]
    assert report["exact_duplicates"] == [
        {"paths": ["[bold] ü/0.png", "[bold] ü/4.png"], "labels": ["[red]cat", "dog"]}
    ]
    assert [p["what"] for p in report["problems"]] == ["cannot be read", "same image, two classes"]


def test_a_large_group_of_duplicates_is_abbreviated_on_the_terminal_only(check, folder, tmp_path):
    for i in range(60):
        photo(5).save(folder / f"copy {i}.png")
    code, out, _ = check(folder, "--labels", tmp_path / "labels.tsv", "--json", tmp_path / "report.json", "-q")
    assert code == 0
    assert "(61 images in 1 group)" in out
    assert max(map(len, out.splitlines())) < 420
    assert len(json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["exact_duplicates"][0]["paths"]) == 61


def test_class_folders_are_labels_and_a_warning_says_so(check, folder):
    (folder / "unlabelled").mkdir()
    photo(9).save(folder / "unlabelled" / "9.png")
    code, out, err = check(folder, "-q")
    assert code == 0
    assert row(out, "[bold]") == ["[bold] ü", "6"]
    assert err.startswith("promptcal: labels are taken from the class folders")
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["my photos/*.gif"], "matches no images"),
        (["my photos", "--labels", "ghost.csv"], "ghost.png, but no such image"),
        (["my photos", "--json", "nowhere/report.json"], "create it first"),
    ],
)
def test_wrong_input_of_check_is_one_sentence(check, folder, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ghost.csv").write_text("path,label\nghost.png,cat\n")
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert len(err.strip().splitlines()) == 1


def test_many_classes_are_shown_by_the_largest_and_smallest(check, folder, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(50):
        Image.fromarray(np.full((2, 2, 3), i, dtype=np.uint8)).save(folder / f"{i:02d}.png")
    rows = [f"{i:02d}.png,class {i // 2 if i < 4 else i}" for i in range(49)]
    (tmp_path / "many.csv").write_text("\n".join(["path,label", *rows]))
    code, out, _ = check(folder, "--labels", tmp_path / "many.csv", "-q")
    assert code == 0
    assert "7 classes between" in out
    assert row(out, "class 0") == ["class 0", "2"]
    assert row(out, "class 48") == ["class 48", "1"]


def test_progress_is_shown_and_an_unreadable_file_exits_with_1(check, folder):
    (folder / "bad.jpg").write_bytes(b"")
    code, out, err = check(folder)
    assert code == 1
    assert "checking" in err
    assert "bad.jpg" in out


def test_a_number_of_classes_is_compared_with_images_and_labels(check, folder, tmp_path):
    given = (folder, "--labels", tmp_path / "labels.tsv", "-q", "--n-classes")
    code, out, _ = check(*given, 3)
    assert code == 0
    assert "Nothing wrong" in out
    assert check(*given, "auto")[1] == out
    code, out, _ = check(*given, 2)  # all of them have labels
    assert code == 0
    assert "leaves no new one to discover" in out
    for number, message in ((1, "the labels name 2 classes but --n-classes is 1; raise it to at least 2"),
                            (5, "2 unlabelled images cannot form 3 new categories; lower --n-classes")):  # fmt: skip
        code, out, _ = check(*given, number)
        assert code == 1
        assert message in out
