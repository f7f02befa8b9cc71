"""Names are safe everywhere, differ where images do, and stay as they are where they can."""

import random
import re
import time
from pathlib import Path

import pytest

from promptcal.exporters.naming import file_names, folder_names, safe_name


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "..",
        ".",
        "",
        "   ",
        "...",
        "x" * 500,
        "ü" * 200,
        "con",
        "LPT1.txt",
        "a\\b",
        "a:b",
        "tab\there",
        ".git",
        "end.",
    ],
)
def test_any_category_can_be_a_folder(tmp_path, name):
    safe = safe_name(name)
    (tmp_path / safe).mkdir()
    assert [p.name for p in tmp_path.iterdir()] == [safe]  # one folder, right here
    assert not re.search(r'[/\\:*?"<>|\x00-\x1f]', safe)
    assert not safe.startswith(".")
    assert not safe.endswith((".", " "))
    assert len(safe.encode()) <= 120


def test_ordinary_names_stay():
    assert folder_names(["great tit", "Kohlmeise 2", "鳥", "new-1"]) == ["great tit", "Kohlmeise 2", "鳥", "new-1"]


def test_long_names_that_begin_alike_stay_apart():
    names = ["x" * 300 + end for end in ("a.png", "b.png")]
    short = [safe_name(n) for n in names]
    assert short[0] != short[1]
    assert all(n.endswith(".png") for n in short)


def test_folders_differ_even_where_case_does_not_count():
    names = folder_names(["a/b", "a_b", "A:B", "", "..", "a_b-2"])
    assert len({n.casefold() for n in names}) == 6
    assert names[-1] == "a_b-2"  # whoever has a name to itself keeps it


def test_images_of_the_same_name_are_told_apart_by_their_folders():
    assert file_names(["x/1.png", "y/1.png", "y/2.png"]) == ["x__1.png", "y__1.png", "2.png"]
    assert file_names(["/abs/x/1.png", "../x/1.png"]) == ["abs__x__1.png", "x__1.png"]


def test_names_never_meet_whatever_the_paths():
    draw = random.Random(0)
    parts = ["a", "A", "a__b", "b", "a-2"]
    for _ in range(200):
        stems = ["/".join(draw.choices(parts, k=draw.randint(1, 3))) for _ in range(12)]
        paths = [stem + draw.choice([".png", ".jpg"]) for stem in stems]
        paths = list(dict.fromkeys(paths))
        assert len({n.casefold() for n in file_names(paths)}) == len(paths)
        assert len({Path(n).stem.casefold() for n in file_names(paths, by_stem=True)}) == len(paths)


def test_many_categories_that_become_one_name_are_numbered_soon():
    names = [chr(1 + i % 8) * (1 + i // 8 % 90) + "/" * (1 + i // 720) for i in range(40_000)]
    started = time.process_time()
    found = folder_names(names)
    assert time.process_time() - started < 5
    assert len({name.casefold() for name in found}) == len(names)
    assert folder_names(["a/b", "a:b", "a_b", "A_B-2", "a?b"]) == ["a_b", "a_b-3", "a_b-4", "A_B-2", "a_b-5"]
