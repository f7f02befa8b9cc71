"""Figures for papers: each shows the results of the run, as PNG and SVG; names are text, whatever they contain."""

import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from promptcal.report import figures
from promptcal.report.report_inputs import ReportInputs
from promptcal.run import Run


@pytest.fixture(scope="module")
def inputs(hostile_run, hostile_report):
    return ReportInputs.load(Run(hostile_run.path, "cpu"), Console(quiet=True))


@pytest.mark.parametrize(("name", "text"), [("tsne", "new 1"), ("confusion", "new 1"), ("curves", "Precision")])
def test_a_figure_as_svg_has_its_names_as_text(promptcal, hostile_run, hostile_report, tmp_path, name, text):
    code, out, err = promptcal("figure", name, hostile_run.path, "--output", tmp_path / f"{name}.svg", "--quiet")
    assert code == 0, err
    assert f"{name}.svg" in out
    texts = [e.text for e in ElementTree.parse(tmp_path / f"{name}.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert text in texts


@pytest.mark.parametrize("name", ["confusion", "attention", "neighbours"])
def test_a_figure_is_a_png_in_the_run_directory_by_default(promptcal, hostile_run, hostile_report, name):
    code, _, err = promptcal("figure", name, hostile_run.path, "--quiet")
    assert code == 0, err
    with Image.open(hostile_run.path / "figures" / f"{name}.png") as picture:
        assert np.asarray(picture.convert("RGB")).std() > 10


def test_the_map_has_every_image_by_cluster_and_by_truth(inputs):
    figure = figures.tsne(inputs)
    assert [axes.get_title() for axes in figure.axes] == ["clusters", "true classes"]
    for axes in figure.axes:
        drawn = np.concatenate([np.asarray(points.get_offsets()) for points in axes.collections])
        assert np.allclose(np.sort(drawn, axis=0), np.sort(inputs.coordinates(), axis=0))


def test_the_confusion_figure_has_the_counts(inputs):
    (axes,) = figures.confusion(inputs).axes
    matrix = inputs.analysis.confusion
    written = {tuple(int(v) for v in text.get_position()): int(text.get_text()) for text in axes.texts}
    assert written == {(j, i): matrix.counts[i, j] for i, j in zip(*np.nonzero(matrix.counts), strict=True)}


def test_neighbours_are_framed_by_the_truth(inputs):
    figure = figures.neighbours(inputs)
    analysis = inputs.analysis
    queries = figures._queries(analysis)
    panels = np.array(figure.axes).reshape(len(queries), 9)
    for row, query in zip(panels, queries, strict=True):
        for axes, tile in zip(row[1:], analysis.neighbours[query], strict=True):
            same = analysis.truth[analysis.shown[query]] == analysis.truth[analysis.shown[tile]]
            expected = (0x2B, 0x8A, 0x4B) if same else (0xC6, 0x2F, 0x35)
            assert tuple(round(255 * v) for v in axes.spines["left"].get_edgecolor()[:3]) == expected


def test_curves_are_the_records(inputs):
    figure = figures.curves(inputs)
    loss = next(axes for axes in figure.axes if axes.get_title() == "Loss")
    assert np.allclose(loss.lines[0].get_ydata(), [record["loss"] for record in inputs.records])


def test_an_error_is_one_sentence(promptcal, hostile_run, tmp_path):
    copy = shutil.copytree(hostile_run.path, tmp_path / "run")
    (copy / "truth.csv").unlink()
    (copy / "thumbnails" / "examples.npz").unlink()
    (copy / "metrics.jsonl").unlink()
    for arguments, said in (
        (["confusion", copy], "promptcal evaluate"),
        (["attention", copy], "no unlabelled images"),
        (["curves", copy], "no epoch records"),
        (["pie", copy], "choose one of tsne"),
        (["tsne", copy, "--output", tmp_path / "map.gif"], "must end in .png"),
        (["tsne", copy, "--output", tmp_path / "nowhere" / "map.png"], "create it first"),
    ):
        code, out, err = promptcal("figure", *arguments, "--quiet")
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.strip().splitlines()) == 1
