"""Label files as they come from other programs and other people: read, or refused with what to do."""

import csv
import io
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from promptcal.data import ImageSet, read_labels
from promptcal.data.labels import normal_name
from promptcal.data.sources import FileSource
from promptcal.errors import LabelError

NAMES = ["a.png", "b c.png", "deep/ü.png", "x,y;z.png", 'quo"te.png', "tab\tbed.png"]
LABELS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8)


def of_names(names):
    return ImageSet(names, FileSource([]), Path("/photos"))  # labels need no pixels


def written(pairs, separator, line_end, header=("path", "label")):
    text, pairs = io.StringIO(), list(pairs)
    # Python before 3.13 leaves a line feed bare where lines end otherwise, and then nobody could tell it from an end
    quoting = csv.QUOTE_ALL if any("\n" in label for _, label in pairs) else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=separator, lineterminator=line_end, quoting=quoting)
    writer.writerow(header)
    writer.writerows(pairs)
    return text.getvalue()


def expected(label):
    text = label.strip()
    return None if text in ("", "-1", "-1.0") else unicodedata.normalize("NFC", text)


QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@example(labels=["", "", "", "", "", "\n0"], order=range(6), twice=False, mark="", separator=",", line_end="\r", end="")
@given(
    labels=st.lists(LABELS, min_size=len(NAMES), max_size=len(NAMES)),
    order=st.permutations(range(len(NAMES))),
    twice=st.booleans(),
    mark=st.sampled_from(["", "\ufeff"]),
    separator=st.sampled_from([",", ";", "\t"]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    end=st.sampled_from(["", "\n", "\r\n\r\n"]),
)
def test_any_spelling_of_the_same_table_gives_the_same_labels(
    tmp_path, labels, order, twice, mark, separator, line_end, end
):
    pairs = [(NAMES[i], labels[i]) for i in order] * (2 if twice else 1)
    (tmp_path / "l.csv").write_bytes((mark + written(pairs, separator, line_end) + end).encode())
    assert read_labels(tmp_path / "l.csv", of_names(NAMES)) == [expected(label) for label in labels]


@QUIET
@given(
    content=st.binary(max_size=300) | st.text(max_size=200).map(lambda t: f"path,label\n{t}".encode(errors="replace"))
)
def test_any_bytes_are_labels_or_refused(tmp_path, content):
    (tmp_path / "l.csv").write_bytes(content)
    try:
        found = read_labels(tmp_path / "l.csv", of_names(NAMES))
    except LabelError:
        return
    assert len(found) == len(NAMES)
    assert all(label is None or label == label.strip() != "" for label in found)


def seconds_for(n, tmp_path):
    names = [f"folder-{i % 1000:03d}/image-{i:07d}.jpg" for i in range(n)]
    (tmp_path / "l.csv").write_text(written(((name, f"class {i % 7}") for i, name in enumerate(names)), ",", "\n"))
    images = of_names(names)
    started = time.process_time()
    found = read_labels(tmp_path / "l.csv", images)
    assert found[:8] == [f"class {i % 7}" for i in range(8)]
    assert len(found) == n
    return time.process_time() - started


def test_a_hundred_thousand_rows_take_seconds(tmp_path):
    assert seconds_for(10**5, tmp_path) < 3


@pytest.mark.slow
def test_a_million_rows_take_at_most_half_a_minute(tmp_path):
    assert seconds_for(10**6, tmp_path) < 30  # of processor time; some 4 s where this was written


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab./ -_ü~"), max_size=12))
def test_the_short_cut_for_tidy_names_changes_nothing(name):
    assert normal_name(name) == unicodedata.normalize("NFC", Path(name).as_posix())
