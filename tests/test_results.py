"""The tables of docs/results.md are those that results/make.py makes of the runs kept in results/runs."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from promptcal.api import fit
from promptcal.config.schema import load_config, variant_preset
from promptcal.data import ImageSet
from promptcal.data.benchmarks import get_benchmark
from promptcal.pipeline.problem import Problem
from promptcal.run.inference import Run

ROOT = Path(__file__).parent.parent


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "results" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make():
    return script("make")


@pytest.fixture(scope="module")
def finished(small_folder, small_set, quick_settings, tmp_path_factory):
    """A run that kept its teacher, and its problem."""
    _, truth, labels = small_set
    truth = [f"class {t}" for t in truth]
    settings = (*quick_settings, "affinity.keep=teacher", "affinity.classifier=1.0", "selection.by=last")
    run = fit(
        images=small_folder,
        labels=small_folder / "labels.csv",
        truth=truth,
        n_classes=4,
        overrides=settings,
        output=tmp_path_factory.mktemp("finished") / "run",
        progress=False,
    )
    images = ImageSet.of(small_folder)
    problem = Problem.of(images, [None if n < 0 else f"class {n}" for n in labels], truth)
    return problem, run.directory


def test_the_page_is_up_to_date(make):
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert make.filled(page, make.tables()) == page


def test_several_seeds_are_a_mean_and_a_deviation(make):
    accuracies = [{"all": a, "known": 0.5, "new": 1.0} for a in (0.7, 0.8, 0.9)]
    assert make.in_words(accuracies) == "80.0 ± 10.0 / 50.0 ± 0.0 / 100.0 ± 0.0"
    assert make.in_words(accuracies[:1]) == "70.0 / 50.0 / 100.0"


def test_the_summary_has_all_of_the_selected_epoch(make, monkeypatch):
    found = {name: {"all": a, "known": 0.1, "new": 0.2} for name, a in (("a", 0.7), ("b", 0.9), ("c", 0.5))}
    monkeypatch.setattr(make, "run", lambda name: {"accuracy": {"selected": found[name], "last": {"all": 0.0}}})
    rows = [{"label": "both", "runs": [["a", "b"], ["c"]]}, {"label": "one", "runs": [[], ["a"]]}]
    assert make.summary_table(["x", "y"], rows).splitlines() == [
        "| | x | y |",
        "|---|---|---|",
        "| both | 80.0 ± 14.1 | 50.0 |",
        "| one |  | 70.0 |",
    ]


def test_noise_is_of_the_same_weights_read_again(make, monkeypatch, tmp_path):
    def accuracies(*found):
        return [{"all": a, "known": a / 2, "new": 0.1} for a in found]

    read = {
        "cub-a": {"student, cls": accuracies(0.5, 0.6, 0.3)},
        "cub-b": {"student, cls": accuracies(0.5, 0.9)},
        "cub-c": {"student, cls": accuracies(0.4, 0.5), "teacher, cls": accuracies(0.7)},
        "cub-d": {"student, cls": accuracies(0.1)},
        "other": {"student, cls": accuracies(0.0, 1.0)},
    }
    (tmp_path / "readouts").mkdir()
    for name, found in read.items():
        (tmp_path / "readouts" / f"{name}.json").write_text(json.dumps(found))
    said = {"accuracy": {"last": accuracies(0.55)[0]}}
    keeps = {"cub-c": {"affinity.keep": "teacher"}}
    monkeypatch.setattr(make, "HERE", tmp_path)
    monkeypatch.setattr(make, "run", lambda name: {**said, "settings": keeps.get(name, {})})
    line = make.noise_table([{"label": "birds", "benchmark": "cub"}]).splitlines()[-1]
    assert line == "| birds | 40.0 / 20.0 / 0.0 | 30.0 / 15.0 / 0.0 | 3 | 45.0 / 22.5 / 0.0 | 4 |"


def test_runs_called_recommended_have_the_variants_values():
    """The variant can change, and what was measured with its earlier values must not keep the name."""
    wanted = yaml.safe_load((ROOT / "results" / "tables.yaml").read_text(encoding="utf-8"))["summary"]["rows"]
    names = [name for row in wanted if "recommended" in row["label"] for runs in row["runs"] for name in runs]
    assert len(names) == 10
    for name in names:
        kept = json.loads((ROOT / "results" / "runs" / f"{name}.json").read_text(encoding="utf-8"))
        preset = load_config(preset=get_benchmark(kept["benchmark"]).preset, values={"n_classes": 10}).model_dump()
        for section, values in variant_preset("recommended").items():
            for key, value in values.items():
                assert kept["settings"].get(f"{section}.{key}", preset[section][key]) == value, (name, section, key)


def test_minutes_are_shown_of_runs_that_trained_all_their_epochs(make, monkeypatch):
    records = [{"stage": "warmup", "epoch": 1, "seconds": 60.0}, {"stage": "affinity", "epoch": 1, "seconds": 120.0}]
    accuracy = {which: {"all": 0.5, "known": 0.5, "new": 0.5} for which in ("warmup", "selected", "last")}
    kept = {
        "whole": {"seconds": 240.0, "records": records},
        "part": {"seconds": 150.0, "records": records},
        "older": {"seconds": 240.0, "records": [{"stage": "affinity", "epoch": 1}]},
    }
    monkeypatch.setattr(make, "run", lambda name: {**kept[name], "accuracy": accuracy, "config_hash": "0"})
    rows = [{"label": "", "runs": [name]} for name in kept] + [{"label": "", "runs": ["whole"], "stage": "warmup"}]
    assert [line.split("|")[6].strip() for line in make.table(rows).splitlines()[2:]] == ["4.0", "", "", ""]


def test_every_run_and_readout_that_is_kept_is_shown(make):
    """Nothing measured is left out of the page without a reason."""
    wanted = yaml.safe_load((ROOT / "results" / "tables.yaml").read_text(encoding="utf-8"))
    rows = [row for table in wanted["tables"].values() for row in table]
    rows += [row for table in wanted["readouts"].values() for row in table["rows"]]
    shown = {name for row in rows for name in row["runs"]} | {row["run"] for row in wanted["graphs"]["graph"]}
    assert {file.stem for file in (ROOT / "results" / "runs").glob("*.json")} == shown
    assert {file.stem for file in (ROOT / "results" / "readouts").glob("*.json")} <= shown
    studied = {row["run"] for row in wanted["mining"]["mining"]}
    assert {file.stem for file in (ROOT / "results" / "mining").glob("*.json")} == studied


@pytest.fixture
def drawn(make, monkeypatch):
    """Every figure that is made."""
    figures = []
    original = make._figure

    def remembered(*size):
        figures.append(original(*size))
        return figures[-1]

    monkeypatch.setattr(make, "_figure", remembered)
    return figures


def test_the_figure_of_the_graph_shows_the_records(make, drawn, tmp_path):
    make.DRAWN_BY["graph"](["cifar100-promptcal"], tmp_path / "figure.png")
    records = [r for r in make.run("cifar100-promptcal")["records"] if r["stage"] == "affinity"]
    precision = drawn[0].axes[1]
    for line, group in zip(precision.lines, ("known", "new"), strict=True):
        assert line.get_xdata().tolist() == [r["epoch"] for r in records]
        assert line.get_ydata().tolist() == [r[f"cls/precision_{group}"] for r in records]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_the_looks_goes_on_from_stage_to_stage(make, drawn, tmp_path):
    make.DRAWN_BY["looks"](["cifar100-gcd", "cifar100-recommended"], tmp_path / "figure.png")
    one_stage, two_stages = drawn[0].axes[0].lines
    assert one_stage.get_xdata().tolist() == two_stages.get_xdata().tolist() == [5, 10, 15, 20, 25, 30]
    looks = [r["validation/known"] for r in make.run("cifar100-recommended")["records"] if "validation/known" in r]
    assert two_stages.get_ydata().tolist() == looks


def test_the_maps_show_every_image_of_every_class(make, drawn, tmp_path):
    make.DRAWN_BY["maps"]("cifar100-one-block", tmp_path / "figure.png")
    found = json.loads((ROOT / "results" / "maps" / "cifar100-one-block.json").read_text())
    for axes, when in zip(drawn[0].axes, ("before", "after"), strict=True):
        assert len(axes.collections) == len(set(found["classes"])) == 20
        shown = {tuple(point) for points in axes.collections for point in points.get_offsets().tolist()}
        assert shown == {tuple(point) for point in found[when]}


def test_other_readouts_are_of_the_weights_a_run_ended_with(finished):
    problem, directory = finished
    found = script("readouts").readouts(problem, directory, None, repeats=2)
    tokens = ("cls", "cls, both sides", "cls and [P]", "classifier")
    assert list(found) == [f"{whose}, {token}" for whose in ("student", "teacher") for token in tokens]
    assert found["teacher, cls"][0] == json.loads(directory.results_file.read_text())["scores"]["last"]
    assert [len(accuracies) for accuracies in found.values()] == [2, 2, 2, 1] * 2
    wanted = ["teacher, cls", "student, classifier"]
    some = script("readouts").readouts(problem, directory, None, repeats=2, only=wanted)
    assert some == {name: found[name] for name in wanted}


def clusters(spread, per_class=30, classes=6):
    """Noisy points around class means, and their classes."""
    noise = np.random.default_rng(0)
    means = noise.normal(size=(classes, 8))
    numbers = np.repeat(np.arange(classes), per_class)
    return means[numbers] + spread * noise.normal(size=(len(numbers), 8)), numbers


def test_precision_of_ranked_pairs_against_a_loop():
    mining = script("mining")
    noise = torch.Generator().manual_seed(0)
    rows = torch.rand(7, 40, generator=noise) * (torch.rand(7, 40, generator=noise) < 0.6)
    right = torch.rand(7, 40, generator=noise) < 0.3
    ranked = sorted(((float(rows[i, j]), bool(right[i, j])) for i in range(7) for j in range(40)), reverse=True)
    for recall, found in zip((0.1, 0.4, 1.0), mining.precision_at(rows, right, (0.1, 0.4, 1.0)), strict=True):
        hits = pairs = 0
        for strength, is_right in ranked:
            if strength == 0 or hits >= recall * int(right.sum()):
                break
            hits, pairs = hits + is_right, pairs + 1
        expected = hits / pairs if hits >= recall * int(right.sum()) else math.nan
        assert found == pytest.approx(expected, nan_ok=True)
    for recall, found in zip((0.1, 0.4), mining.precision_by_query(rows, right, (0.1, 0.4)), strict=True):
        for each in range(1, 41):
            hits = sum(int(right[i][rows[i].argsort(descending=True, stable=True)[:each]].sum()) for i in range(7))
            if hits >= recall * int(right.sum()):
                break
        assert found == pytest.approx(hits / (7 * each))


def test_ways_to_rank_pairs_by_hand():
    """Three nodes in a row, one neighbour each: the first and the second have each other, the third has the second."""
    mining = script("mining")
    angles = torch.deg2rad(torch.tensor([0.0, 10.0, 30.0]))
    nodes = torch.stack([angles.cos(), angles.sin()], dim=1)
    nearest = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 1, 0]])
    consensus = torch.tensor([[0.0, 1, 0], [2 / 3, 0, 1 / 3], [0, 1, 0]])  # of the second's 3, 2 with the first
    expected = {
        "cosine": nodes @ nodes.T,
        "no propagation": consensus,
        "no consensus": nearest @ nearest @ nearest.T,
        "consensus and propagation": consensus @ consensus @ consensus.T,
    }
    found = mining.strengths(nodes, 1)
    assert list(found) == list(expected)
    for way, rows in expected.items():
        assert torch.allclose(found[way], rows.fill_diagonal_(0.0), atol=1e-6), way


def test_new_classes_are_those_from_the_number_of_known_ones_on():
    mining = script("mining")
    mining.DRAWS = 1
    points, numbers = clusters(0.01)
    points[numbers >= 4] = np.random.default_rng(1).normal(size=points[numbers >= 4].shape)  # of no class at all
    found = mining.study(points, numbers, 4, k=5, nodes=180)["consensus and propagation"]
    assert found["known"][0] == 1.0
    assert found["new"][0] < 0.9


def test_pairs_of_tight_clusters_are_all_right_and_of_wide_ones_are_not():
    mining = script("mining")
    mining.DRAWS = 2
    tight, wide = (mining.study(*clusters(spread), 3, k=5, nodes=180) for spread in (0.01, 1.5))
    assert list(tight) == list(wide)
    for way in tight:
        assert tight[way]["known"][:2] == tight[way]["new"][:2] == [1.0, 1.0]
        assert wide[way]["known"][0] < 0.95


def test_pairs_are_those_of_a_run_with_known_classes_first(finished):
    problem, directory = finished
    mining = script("mining")
    mining.DRAWS = 2
    numbers, config = problem.truth_numbers(), directory.config()
    expected = mining.study(
        np.load(directory.embeddings_file),
        numbers,
        len(problem.classes),
        k=config.neighbours,
        nodes=config.affinity.memory + 2 * config.data.batch_size,
    )
    assert mining.study_of(Run(directory.path)) == expected


def test_maps_are_of_unlabelled_images_before_and_after(finished):
    problem, directory = finished
    tsne = script("tsne")
    found = tsne.features(problem.images, directory)
    unlabelled = [i for i, label in enumerate(problem.labels) if label < 0]
    assert found["classes"].tolist() == [problem.truth[i] for i in unlabelled]
    assert found["known"].tolist() == [problem.truth[i] in problem.classes for i in unlabelled]
    assert np.allclose(found["after"], np.load(directory.embeddings_file)[unlabelled], atol=1e-3)
    assert found["before"].shape == found["after"].shape
    assert np.allclose(np.linalg.norm(found["before"].astype(np.float32), axis=1), 1, atol=1e-2)
    assert not np.allclose(found["before"], found["after"], atol=0.01)
