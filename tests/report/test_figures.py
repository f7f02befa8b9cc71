"""Figures for papers: each shows the results of the run, as PNG and SVG; names are text, whatever they contain."""

import shutil
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.metrics import confusion_matrix

from promptcal import api, benchmark
from promptcal.data import ImageSet, embedded_set
from promptcal.data.benchmarks import BENCHMARKS, BenchmarkSpec, Layout, Split
from promptcal.errors import DataError
from promptcal.models.attention import class_attention
from promptcal.report import figures
from promptcal.report.figure_inputs import FigureInputs, one_of_each
from promptcal.run import Run

QUIET = Console(quiet=True)
FRAMES = {True: (0x2B, 0x8A, 0x4B), False: (0xC6, 0x2F, 0x35)}  # of the same class


@pytest.fixture(scope="module")
def inputs(hostile_run, hostile_report):
    return FigureInputs.load([Run(hostile_run.path, "cpu")], QUIET)


def read_tiny(path, test):
    """12 training images and 8 test images of each of 4 classes."""
    data = embedded_set("test" if test else "train")
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[: 8 if test else 12] for c in range(4)])
    return Split(ImageSet.of(data.images[chosen]), data.labels[chosen], data.classes[:4])


@pytest.fixture(scope="module")
def runs(tmp_path_factory, common_settings, quick_settings):
    """Runs of a small benchmark with test images, by folder; the prompts of vpt have no loss."""
    root, fast = tmp_path_factory.mktemp("benchmark"), ["selection.by=last", "tensorboard=false", "clustering.n_init=2"]
    settings = {
        "gcd": ("gcd", [*common_settings, "optim.epochs=1"]),
        "promptcal": ("promptcal", [*quick_settings, "warmup.epochs=1", "affinity.epochs=1"]),
        "vpt": ("promptcal", [*quick_settings, "warmup.epochs=1", "affinity.epochs=0", "model.supervised_prompts=0"]),
        "frozen": ("kmeans", common_settings[:2]),
    }
    layouts = (Layout("tiny", read_tiny, embedded=True),)
    with pytest.MonkeyPatch.context() as patch:
        spec = BenchmarkSpec("a small set", 48, 4, range(2), layouts, remedy="install it")
        patch.setitem(BENCHMARKS._registered, "tiny", spec)
        yield {
            name: benchmark(
                name="tiny", method=method, output=root / name, overrides=[*values, *fast], device="cpu", progress=False
            )
            for name, (method, values) in settings.items()
        }


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


def drawn_points(axes):
    return np.concatenate([np.asarray(points.get_offsets()) for points in axes.collections])


def frame_of(axes):
    return tuple(round(255 * v) for v in axes.spines["left"].get_edgecolor()[:3])


def test_the_map_has_every_image_by_cluster_and_by_truth(inputs):
    figure = figures.tsne(inputs)
    assert [axes.get_title() for axes in figure.axes] == ["clusters", "true classes"]
    for axes in figure.axes:
        expected = np.sort(inputs.runs[0].coordinates("cls"), axis=0)
        assert np.allclose(np.sort(drawn_points(axes), axis=0), expected)


def test_the_confusion_figure_has_the_counts(inputs):
    (axes,) = figures.confusion(inputs).axes
    matrix = inputs.runs[0].analysis.confusion
    written = {tuple(int(v) for v in text.get_position()): int(text.get_text()) for text in axes.texts}
    assert written == {(j, i): matrix.counts[i, j] for i, j in zip(*np.nonzero(matrix.counts), strict=True)}


def test_neighbours_are_framed_by_the_truth(inputs):
    figure = figures.neighbours(inputs)
    run = inputs.runs[0]
    truth, queries = run.analysis.truth, one_of_each(run.groups(), 10)
    assert {truth[q] for q in queries} == set(truth)  # one of each class
    panels = np.array(figure.axes).reshape(len(queries), 9)
    for row, query, found in zip(panels, queries, run.neighbours(queries), strict=True):
        for axes, image in zip(row[1:], found, strict=True):
            assert frame_of(axes) == FRAMES[truth[query] == truth[image]]


def test_a_true_class_that_only_labelled_images_have_is_not_shown(inputs):
    """Labels may have other names than the truth: such a class is in no row of the confusion matrix."""
    run = inputs.runs[0]
    labelled = int(np.flatnonzero(run.analysis.assignments.labelled)[0])
    truth = ["another name" if i == labelled else name for i, name in enumerate(run.analysis.truth)]
    changed = replace(run, analysis=replace(run.analysis, truth=truth), stored=None)
    assert changed.analysis.true_class_numbers[labelled] == -1
    assert len(figures.tsne(FigureInputs([changed], ["cls"])).axes) == 2


def test_a_run_names_its_benchmark(runs, hostile_run):
    assert (runs["gcd"].info.benchmark, hostile_run.info.benchmark) == ("tiny", None)


@pytest.mark.parametrize("split", ["train", "test"])
def test_maps_of_runs_and_tokens_are_of_the_networks_own_embeddings(runs, split, monkeypatch):
    """The grid of the paper: a row for each token, a column for each run."""
    chosen, tokens = [runs["gcd"], runs["promptcal"], runs["vpt"]], ["cls", "prompts", "unsupervised-2"]
    mapped = []
    monkeypatch.setattr(
        "promptcal.report.figure_inputs.map_with_progress",
        lambda embeddings, run, console: mapped.append(embeddings) or embeddings[:, :2],
    )
    inputs = FigureInputs.load(chosen, QUIET, tokens=tokens, split=split)
    figure = figures.tsne(inputs)
    assert [axes.get_title() for axes in figure.axes] == [
        f"{run} {token}" for token in ("[CLS]", "[P]", "[P]* 2") for run in ("gcd", "promptcal", "vpt")
    ]
    assert {axes.get_xlim() for axes in figure.axes if not axes.texts} == {(-1.05, 1.05)}  # the same scale
    missing = [axes.get_title() for axes in figure.axes if axes.texts]
    assert missing == ["gcd [P]", "vpt [P]", "gcd [P]* 2"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == embedded_set().classes[:4]
    images = read_tiny(None, split == "test").images
    for run in inputs.runs:
        vit, shown = run.run.network.vit, run.analysis.shown
        views = views_of(run.run, images)[shown]
        with torch.no_grad():
            outputs = vit.forward_tokens(views)[:, 1:]
            own = {"cls": vit(views).cls}
            own |= {"prompts": vit(views).prompt} if vit.n_supervised else {}
            own |= {"unsupervised-2": outputs[:, vit.n_supervised + 1]} if vit.n_prompts else {}
        assert set(run.embeddings) == set(own)
        for token, expected in own.items():
            expected = torch.nn.functional.normalize(expected, dim=1).numpy()
            assert np.allclose(run.embeddings[token], expected, atol=1e-5)
            assert (token == "cls" and split == "train") or any(found is run.embeddings[token] for found in mapped)


def views_of(run, images):
    """The centre views of all images, through a plain resize and crop."""
    size, mean, std = run.network.vit.preprocessing
    resized = np.stack([images.resized(i, run.info.resize) for i in range(len(images))])
    spare = round((run.info.resize - size) / 2)
    pixels = torch.from_numpy(resized[:, spare : spare + size, spare : spare + size] / 255)
    return ((pixels - torch.tensor(mean)) / torch.tensor(std)).permute(0, 3, 1, 2).float()


def test_confusion_on_the_test_images_is_sklearns_of_what_predict_says(runs):
    inputs = FigureInputs.load([runs["gcd"], runs["promptcal"]], QUIET, split="test")
    figure = figures.confusion(inputs)
    assert [axes.get_title() for axes in figure.axes] == ["GCD", "PromptCAL"]
    split = read_tiny(None, True)
    for run, axes in zip(inputs.runs, figure.axes, strict=True):
        predicted = api.predict(run=run.run, images=split.images, accept_all=True, progress=False)
        matrix = run.analysis.confusion
        expected = confusion_matrix(split.classes, predicted.clusters, labels=range(4))[:, matrix.clusters]
        assert matrix.classes == split.class_names
        assert np.array_equal(matrix.counts, expected)
        written = {tuple(int(v) for v in text.get_position()): int(text.get_text()) for text in axes.texts}
        assert written == {(j, i): expected[i, j] for i, j in zip(*np.nonzero(expected), strict=True)}


@pytest.mark.parametrize("split", ["train", "test"])
def test_neighbours_of_two_runs_are_those_by_brute_force(runs, split):
    inputs = FigureInputs.load([runs["promptcal"], runs["gcd"]], QUIET, split=split)
    figure = figures.neighbours(inputs)
    assert [text.get_text() for text in figure.texts] == ["PromptCAL", "GCD"]
    data = read_tiny(None, split == "test")
    embeddings = {run.label: run.run.embed(data.images, progress=False)[1].double().numpy() for run in inputs.runs}
    small = np.stack([shrunk(data.images.image(i)) for i in range(len(data.images))])
    queries = one_of_each(inputs.runs[0].groups(), 10)
    panels = np.array(figure.axes).reshape(len(queries), 1 + 2 * 8)
    for query, row in zip(queries, panels, strict=True):
        name = data.class_names[data.classes[query]]
        assert row[0].get_ylabel() == f"{name}\n({'known' if data.classes[query] < 2 else 'new'})"
        for run, block in zip(inputs.runs, (row[1:9], row[9:]), strict=True):
            cosines = embeddings[run.label] @ embeddings[run.label][query]
            cosines[query] = -np.inf
            expected = np.argsort(-cosines)[:8]
            for axes, image in zip(block, expected, strict=True):
                assert frame_of(axes) == FRAMES[bool(data.classes[query] == data.classes[image])]
                tile = Image.fromarray(np.asarray(axes.images[0].get_array()))
                assert np.abs(small - shrunk(tile)).mean(axis=(1, 2, 3)).argmin() == image


def shrunk(image):
    return np.asarray(image.resize((16, 16)), dtype=float)


@pytest.mark.parametrize("split", ["train", "test"])
def test_attention_of_two_runs_is_of_the_same_images(runs, split, monkeypatch):
    inputs = FigureInputs.load([runs["promptcal"], runs["gcd"]], QUIET, split=split)
    drawn, overlays = [], figures.overlays
    monkeypatch.setattr(figures, "overlays", lambda maps, side: drawn.append(maps) or overlays(maps, side))
    figure = figures.attention(inputs)
    titles = ["image", "pretrained", "PromptCAL\nafter stage 1", "PromptCAL\nafter stage 2", "GCD"]
    n_blocks = 2 if split == "train" else 1  # more than 6 examples are drawn side by side
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == titles * n_blocks
    ours, theirs = drawn
    assert np.array_equal(ours.examples.images, theirs.examples.images)
    assert np.array_equal(ours.examples.pixels, theirs.examples.pixels)
    data = read_tiny(None, split == "test")
    for maps, run in ((ours, runs["promptcal"]), (theirs, runs["gcd"])):
        expected = class_attention(run.network.vit, views_of(run, data.images)[maps.examples.images]).mean(dim=1)
        assert np.allclose(maps.maps[:, -1].reshape(len(expected), -1), expected.numpy(), atol=1e-2)


def test_only_the_map_of_the_class_token_is_stored(promptcal, runs, tmp_path):
    copy = shutil.copytree(runs["promptcal"].path, tmp_path / "copy")
    (copy / "map.npz").unlink(missing_ok=True)
    for arguments in (["--token", "prompts"], ["--split", "test"]):
        code, _, err = promptcal("figure", "tsne", copy, *arguments, "--quiet")
        assert code == 0, err
        assert not (copy / "map.npz").exists()
    assert promptcal("figure", "tsne", copy, runs["gcd"].path, "--quiet")[0] == 0
    assert (copy / "map.npz").is_file()
    names = {file.name for file in (copy / "figures").iterdir()}
    assert names == {"tsne-prompts.png", "tsne-test.png", "tsne-copy-gcd.png"}


def test_curves_are_the_records(inputs):
    figure = figures.curves(inputs)
    loss = next(axes for axes in figure.axes if axes.get_title() == "Loss")
    assert np.allclose(loss.lines[0].get_ydata(), [record["loss"] for record in inputs.runs[0].run.records()])


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


def test_what_cannot_be_drawn_of_these_runs_is_one_sentence(promptcal, runs, hostile_run, tmp_path):
    gcd, ours, frozen = (runs[name].path for name in ("gcd", "promptcal", "frozen"))
    weightless = shutil.copytree(ours, tmp_path / "weightless")
    (weightless / "model.safetensors").unlink()
    for arguments, said in (
        (["tsne", hostile_run.path, "--split", "test"], "use a run of `promptcal benchmark`"),
        (["tsne", gcd, "--split", "val"], "choose one of train, test"),
        (["tsne", gcd, "--token", "prompts"], f"the network of {gcd} has no token prompts; choose from cls"),
        (["tsne", ours, gcd, "--token", "unsupervised-4"], "unsupervised-2, unsupervised-3"),
        (["confusion", ours, "--token", "prompts"], "--token is for tsne"),
        (["neighbours", gcd, hostile_run.path], "runs on different images"),
        (["attention", ours, frozen], "trained no network"),
        (["curves", ours, gcd], "give one run directory"),
        (["curves", ours, "--split", "test"], "leave out --split test"),
        (["confusion", weightless, "--split", "test"], "model.safetensors cannot be read"),
    ):
        code, out, err = promptcal("figure", *arguments, "--quiet")
        assert (code, out) == (2, ""), arguments
        assert said in err
        assert len(err.strip().splitlines()) == 1


def test_test_images_must_exist_and_be_the_same_for_all_runs(promptcal, runs, monkeypatch, tmp_path):
    gcd = runs["gcd"].path
    other = shutil.copytree(gcd, tmp_path / "other")
    (other / "run.json").write_text((gcd / "run.json").read_text().replace('"tiny"', '"mini"'))
    without = BenchmarkSpec("no test set", 48, 4, range(2), (Layout("x", read_tiny, has_test=False),), remedy="get it")
    for said, given in (("different images", [gcd, other]), ("no test set has no test images", [gcd])):
        code, _, err = promptcal("figure", "tsne", *given, "--split", "test", "--quiet")
        assert code == 2
        assert said in err
        monkeypatch.setitem(BENCHMARKS._registered, "tiny", without)


def test_attention_of_own_images_needs_one_image_size(runs, hostile_run, monkeypatch):
    monkeypatch.setattr(type(runs["gcd"].network.vit.preprocessing), "image_size", 20)
    inputs = FigureInputs.load([runs["promptcal"], runs["gcd"]], QUIET)
    with pytest.raises(DataError, match="20 pixels and the first run of 8"):
        figures.attention(inputs)
