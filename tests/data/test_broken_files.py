"""Hundreds of damaged image files: no crash, no hang, bounded memory, and each file is reported once by name."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from broken_files import FORMATS, encoded, flat_png, write_corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from promptcal.data import ImageSet, embedded_set
from promptcal.data.decoding import MAX_PIXELS, UnreadableImage
from promptcal.data.sources import ArchiveSource
from promptcal.errors import PromptCALWarning
from promptcal.run import Run
from promptcal.training import embedding

SECONDS = 180  # far more than any of it takes, far less than for ever

# Calls of the command line one after another in a process of its own; after each its exit code, what it said, and how
# much memory had been taken by then over what importing took.
MEASURED = """
import contextlib, io, json, resource, sys
from promptcal.cli import main
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["promptcal", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps({"code": code, "said": said.getvalue(), "grown": peak() - before}))
"""


def measured(*calls, path=os.environ["PATH"]):
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps([[str(a) for a in call] for call in calls])],
        capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"code"')]
    return [SimpleNamespace(**one) for one in lines]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    names, sound = write_corpus(folder)
    assert len(names - sound) >= 300
    return SimpleNamespace(folder=folder, names=names, sound=sound)


@pytest.fixture(scope="module")
def false_ghostscript(tmp_path_factory):
    """A PATH on which the interpreter Pillow hands PostScript to leaves a mark when it is called."""
    folder = tmp_path_factory.mktemp("programs")
    mark = folder / "called"
    for name in ("gs", "gswin32c", "gswin64c"):
        (folder / name).write_text(f"#!/bin/sh\ntouch '{mark}'\n")
        (folder / name).chmod(0o755)
    return SimpleNamespace(path=f"{folder}:{os.environ['PATH']}", mark=mark)


def quick(settings):
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="module")
def ended(corpus, quick_settings, false_ghostscript, tmp_path_factory):
    """What became of check, fit and predict over the corpus and two images of 40 million pixels."""
    place = tmp_path_factory.mktemp("ended")
    large = place / "images"
    large.mkdir()
    for file in corpus.folder.iterdir():
        if file.name != "circle":
            (large / file.name).symlink_to(file)
    content = flat_png(6300, 6300)  # 160 MB decoded
    for i in range(2):
        (large / f"large-{i}.png").write_bytes(content)
    check, fit, predict = measured(
        ["check", large, "--json", place / "found.json", "--quiet"],
        ["fit", corpus.folder, "--n-classes", 4, "--output", place / "run", "--quiet", "--no-report",
         "--skip-unreadable", *quick(quick_settings)],
        ["predict", place / "run", corpus.folder, "--output", place / "p.csv", "--quiet", "--accept-all",
         "--skip-unreadable"],
        path=false_ghostscript.path,
    )  # fmt: skip
    return SimpleNamespace(place=place, check=check, fit=fit, predict=predict)


def test_check_reports_each_broken_file_once_within_bounds(corpus, ended, false_ghostscript):
    assert ended.check.code == 1
    found = json.loads((ended.place / "found.json").read_text())
    unreadable = [entry["path"] for entry in found["unreadable"]]
    assert len(unreadable) == len(set(unreadable)) > 200
    everything = corpus.names | {"large-0.png", "large-1.png"}
    assert set(unreadable) <= everything - corpus.sound
    assert found["images"] == len(everything) == len(unreadable) + found["unlabelled"]
    assert all(entry["reason"] and "\n" not in entry["reason"] for entry in found["unreadable"])
    assert {n for n in everything if n.startswith(("bomb", "zero", "postscript", "line", "pole"))} <= set(unreadable)
    assert not false_ghostscript.mark.exists()
    assert ended.check.grown < 1200


def test_fit_leaves_each_out_by_name(corpus, ended):
    assert (ended.fit.code, "Traceback" in ended.fit.said) == (0, False)
    skipped = [row["path"] for row in csv.DictReader((ended.place / "run" / "skipped.csv").open())]
    assigned = [row["path"] for row in csv.DictReader((ended.place / "run" / "assignments.csv").open())]
    assert sorted(skipped + assigned) == sorted(corpus.names)
    assert corpus.sound <= set(assigned)
    assert ended.fit.grown < 1200


def test_predict_reports_each_file_it_leaves_out(corpus, ended):
    assert ended.predict.code == 0
    predicted = [row["path"] for row in csv.DictReader((ended.place / "p.csv").open())]
    reported = re.findall(r"(?:skipped: |; )([\w./-]+) \(", ended.predict.said)
    assert sorted(reported + predicted) == sorted(corpus.names)
    assert ended.predict.grown < 1200


def test_without_skip_unreadable_it_is_one_sentence(corpus, ended, promptcal, quick_settings, tmp_path):
    fit = ["fit", corpus.folder, "--n-classes", 4, "--output", tmp_path / "run", *quick(quick_settings)]
    for arguments in (fit, ["predict", ended.place / "run", corpus.folder]):
        code, _, err = promptcal(*arguments, "--quiet")
        assert code == 2
        assert re.search(r"cannot read \S+ \(.+\) and \d+ more; remove it or pass --skip-unreadable$", err.strip())


@pytest.mark.slow
def test_images_just_below_the_limit_take_no_more_than_3_gb(tmp_path):
    side = int(MAX_PIXELS**0.5)
    content = flat_png(side, side)
    for i in range(8):
        (tmp_path / f"{i}.png").write_bytes(content)
    (ended,) = measured(["check", tmp_path, "--quiet"])
    assert ended.code == 0
    assert ended.grown < 3000


def test_predict_continues_after_a_part_without_any_readable_image(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "_IMAGES_AT_ONCE", 2)
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "c.png").write_bytes(encoded(embedded_set("train").images[0], "PNG"))
    with pytest.warns(PromptCALWarning, match=r"2 unreadable images were skipped: a.png \(.+\); b.png"):
        found = Run(ended.place / "run").predict(tmp_path, accept_all=True, skip_unreadable=True, progress=False)
    assert found.paths == ["c.png"]


def opened(data):
    return ImageSet(["x"], ArchiveSource(np.frombuffer(data, np.uint8), [(0, len(data))]))


SOUND = {kind: encoded(embedded_set("train").images[3], kind) for kind in [*FORMATS.values(), "BMP", "PPM"]}


@st.composite
def damaged_images(draw):
    """A real image of some kind, with bytes overwritten, cut out or put in anywhere."""
    data = bytearray(SOUND[draw(st.sampled_from(sorted(SOUND)))])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        new = draw(st.binary(max_size=12))
        data[place : place + draw(st.sampled_from([0, len(new), len(new), 40, 10**6]))] = new
    return bytes(data)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(damaged_images(), st.binary(max_size=200)))
def test_any_bytes_are_an_image_of_bounded_size_or_unreadable(data):
    images = opened(data)
    try:
        image = images.image(0)
    except UnreadableImage:
        return
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    assert image.width * image.height <= MAX_PIXELS
    assert images.size(0) in (image.size, image.size[::-1])


def test_what_is_no_plain_picture_is_refused_by_its_content_not_its_name(corpus):
    images = ImageSet.of([corpus.folder / "postscript.jpg", corpus.folder / "really-png.jpg"])
    with pytest.raises(UnreadableImage, match="not an image"):
        images.image(0)
    assert images.image(1).size == (32, 32)


def test_links_to_pipes_and_devices_are_passed_over(corpus):
    names = set(ImageSet.of(corpus.folder).names)
    assert names == corpus.names
    assert "dangling.png" in names
    assert {n for n in ImageSet.of(corpus.folder / "*.png").names if "link" in n or "pipe" in n} == set()
    assert Path(corpus.folder / "link-to-pipe.png").exists()
