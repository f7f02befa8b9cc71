"""What results look like in Python and in a notebook: short, self-contained, escaped."""

import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import promptcal
from promptcal.data import ImageSet
from promptcal.discovery.class_count import ClassCount, Trial
from promptcal.errors import MissingPackageError
from promptcal.pipeline.apply_names import NamingResult
from promptcal.run import Assignments
from promptcal.run.summary import picture

HOSTILE = '<script>alert("x")</script>'


def assignments(n=6, names=("cat", HOSTILE, "new-1"), **more):
    clusters = np.arange(n) % 2
    return Assignments(
        [f"{i}.png" for i in range(n)],
        clusters,
        np.linspace(0.5, 1, n),
        list(names),
        [i < 2 for i in range(len(names))],
        np.arange(n) < 2,
        np.where(clusters == 0, 1, -1),
        np.full(n, 0.25),
        **more,
    )


class Tags(HTMLParser):
    """The tags of a page and the text of its cells."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.cells, self.sources = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, text):
        if self.tags[-1] in ("td", "th"):
            self.cells.append(text)


@pytest.fixture(scope="module")
def run(small_folder, common_settings, tmp_path_factory):
    """A fit from Python with its default options."""
    return promptcal.fit(
        images=small_folder,
        labels=small_folder / "labels.csv",
        n_classes=4,
        method="kmeans",
        overrides=common_settings,
        output=tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", "|"),
        progress=False,
    )


def test_a_fit_from_python_writes_the_report(run, small_folder, common_settings, tmp_path):
    assert run.directory.report_file.read_text(encoding="utf-8").startswith("<!doctype html>")
    without = promptcal.fit(
        images=small_folder,
        n_classes=4,
        method="kmeans",
        overrides=common_settings,
        output=tmp_path / "run",
        report=False,
        progress=False,
    )
    assert not without.directory.report_file.exists()


def test_representations_are_one_short_line(run):
    trials = tuple(Trial(k, 0.5, 0.1, 1.0) for k in range(2, 40))
    for value, expected in (
        (run, "48 images, 2 known and 2 new categories"),
        (assignments(10_000), "10000 images, 2 known and 1 new categories"),
        (assignments(4, accepted=np.array([True, False, True, True])), "1 images in none of them"),
        (ImageSet.of(np.zeros((5000, 2, 2, 3), np.uint8)), "5000 images"),
        (ClassCount(n_classes=7, trials=trials, bounds=(2, 40)), "7 classes; tried 38 numbers from 2 to 40"),
        (
            promptcal.check(images=np.zeros((50, 40, 40, 3), np.uint8), progress=False),
            "50 images, 0 classes: 0 problems",
        ),
    ):
        text = repr(value)
        assert expected in text
        assert text.startswith(type(value).__name__ + "(")
        assert "\n" not in text
        assert len(text) < 300


def test_the_html_of_assignments_is_a_table_of_escaped_categories():
    page = Tags(assignments(accepted=np.array([True] * 5 + [False]), similarity=np.ones(6))._repr_html_())
    assert page.cells == [
        *("category", "kind", "images", "mean confidence"),
        *("cat", "known", "3", "0.70"),
        *(HOSTILE, "known", "2", "0.70"),
        *("new-1", "new", "0"),
        *("(none of these)", "1"),
    ]
    assert "script" not in page.tags


def test_a_table_of_many_categories_is_cut():
    many = assignments(names=[f"c{i}" for i in range(500)])._repr_html_()
    assert "... and 470 more" in many
    assert len(many) < 5000


def test_the_html_of_a_run_needs_no_other_file(run):
    page = Tags(run._repr_html_())
    assert set(page.tags) == {"p", "b", "table", "tr", "th", "td", "img"}
    assert [source[:23] for source in page.sources] == ["data:image/jpeg;base64,"]
    assert len(run._repr_html_()) < 200_000
    assert "new-2" in page.cells


def test_a_picture_that_cannot_be_read_is_left_out(tmp_path):
    (tmp_path / "damaged.png").write_bytes(b"no picture")
    assert picture(tmp_path / "damaged.png") == picture(tmp_path / "absent.png") == ""
    Image.new("1", (820, 9_000)).save(tmp_path / "tall.png")  # a hundred categories
    assert 0 < len(picture(tmp_path / "tall.png")) < 200_000
    Image.new("1", (820, 90_000)).save(tmp_path / "slow.png")
    assert picture(tmp_path / "slow.png") == ""


def test_data_frames_have_the_columns_of_the_csv_file(run):
    pandas = pytest.importorskip("pandas")
    frame = run.to_pandas()
    stored = pandas.read_csv(run.directory.assignments_file, keep_default_na=False)
    assert list(frame.columns) == list(stored.columns)
    assert frame["path"].tolist() == stored["path"].tolist()
    assert frame["cluster"].tolist() == stored["cluster"].tolist()
    assert frame["labelled"].sum() == (stored["labelled"] == "yes").sum() == 12
    trials = (Trial(2, 0.5, 0.1, 1.0), Trial(3, 0.75, 0.2, 0.5))
    assert ClassCount(n_classes=3, trials=trials, bounds=(2, 3)).to_pandas()["accuracy"].tolist() == [0.5, 0.75]
    assert assignments().to_pandas()["second"].isna().tolist() == [False, True] * 3


def test_the_findings_of_check_are_a_table_in_a_notebook_and_in_pandas():
    pandas = pytest.importorskip("pandas")
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    found = promptcal.check(images=np.stack([image, image, image]), labels=[HOSTILE, "a", None], progress=False)
    page = Tags(found._repr_html_())
    assert page.cells[:4] == ["kind", "finding", "amount", "cases"]
    assert page.cells[4:7] == ["problem", "same image, two classes", "3 images in 1 group"]
    assert "script" not in page.tags
    frame = found.to_pandas()
    assert frame.columns.tolist() == ["kind", "finding", "case"]
    assert len(frame) == sum(len(finding.cases) for finding in [*found.problems, *found.warnings])
    assert HOSTILE in frame["case"][0]
    nothing = promptcal.check(images=np.zeros((1, 40, 40, 3), np.uint8), labels=["a"], progress=False).to_pandas()
    assert isinstance(nothing, pandas.DataFrame)


def test_the_result_of_naming_is_a_table_in_a_notebook_and_in_pandas():
    pytest.importorskip("pandas")
    found = NamingResult({"new-1": HOSTILE}, {"new-2": "cat"}, 5, ["see <b>"], {"emu": 3})
    page = Tags(found._repr_html_())
    rows = ["change", "before", "now", "renamed", "new-1", HOSTILE, "merged", "new-2", "cat", "added", "emu"]
    assert page.cells == rows  # the category before an added one is empty
    assert not {"script", "b"} & set(page.tags)
    frame = found.to_pandas()
    assert frame["change"].tolist() == ["renamed", "merged", "added"]
    assert frame["now"].tolist() == [HOSTILE, "cat", "emu"]


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=re.escape("to_pandas() needs pandas; pip install pandas")):
        assignments().to_pandas()
