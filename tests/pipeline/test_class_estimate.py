"""The number of classes of images: function, command, and `n_classes: auto`."""

import csv
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from promptcal.api import estimate_classes, fit
from promptcal.cli.run_output import describe_merges
from promptcal.config import Layers
from promptcal.data import embedded_set
from promptcal.data.feature_set import FeatureSet
from promptcal.discovery import ClassCount, count_classes
from promptcal.discovery.merging import ClusterMerge
from promptcal.discovery.nearest_known import unit_centroids
from promptcal.discovery.partition import Partition
from promptcal.errors import LabelError, RunError
from promptcal.methods import METHODS
from promptcal.metrics import contingency_table
from promptcal.models import EMBEDDED_BACKBONE, PromptedViT
from promptcal.pipeline import agreed_number as search
from promptcal.pipeline import prepare
from promptcal.pipeline.agreed_number import agreed_number
from promptcal.pipeline.automatic_merges import FoundMerges
from promptcal.pipeline.cluster import discover, features_settings
from promptcal.pipeline.final_partition import final_partition
from promptcal.pipeline.inputs import Settings
from promptcal.pipeline.problem import Problem
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task
from promptcal.run.categories import AutomaticMerge
from promptcal.run.directory import RunDirectory
from promptcal.runtime.progress import LINES_VARIABLE
from promptcal.runtime.seeds import derive_seed

pytestmark = pytest.mark.filterwarnings("ignore:the estimate of:promptcal.errors.PromptCALWarning")
SMALL = ("estimation.n_init=2", "estimation.max_classes=8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_set):
    """The small set as PNG files with a label file."""
    root = tmp_path_factory.mktemp("counting")
    (root / "images").mkdir()
    rows = ["path,label"]
    for i, (image, label) in enumerate(zip(small_set[0], small_set[2], strict=True)):
        Image.fromarray(image).save(root / "images" / f"{i:02d}.png")
        rows += [f"{i:02d}.png,class{label}"] if label >= 0 else []
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root


@pytest.fixture(scope="module")
def frozen_features():
    """Embeddings of uint8 images by the included backbone, without the package's image handling."""

    @torch.no_grad()
    def embed(images):
        vit = PromptedViT(EMBEDDED_BACKBONE, prompts=0).eval()
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in vit.preprocessing[1:])
        pixels = [np.asarray(Image.fromarray(image).resize((36, 36), Image.Resampling.BICUBIC)) for image in images]
        batch = torch.from_numpy(np.stack(pixels)[:, 2:34, 2:34]).permute(0, 3, 1, 2).float() / 255
        return torch.nn.functional.normalize(vit((batch - mean) / std).cls, dim=1)

    return embed


def test_classes_are_counted_in_the_embeddings_of_the_frozen_backbone(small_set, frozen_features):
    images, _, labels = small_set
    found = estimate_classes(
        images=images, labels=labels, backbone=EMBEDDED_BACKBONE, max_classes=8,
        overrides=["estimation.n_init=3", "precision=fp32"], progress=False,
    )  # fmt: skip
    seed = derive_seed(0, "class count")
    expected = count_classes(frozen_features(images), labels, max_classes=8, n_init=3, max_iter=200, seed=seed)
    assert found.n_classes == expected.n_classes
    assert found.bounds == (2, 8)
    for trial, other in zip(found.trials, expected.trials, strict=True):
        assert trial == pytest.approx(other, abs=1e-3)


def test_the_published_search_is_an_option(promptcal, folder, small_set, frozen_features):
    """Brent's search up to all images, as there are fewer than 1,000, and the best accuracy decides."""
    code, out, err = promptcal(
        "estimate-classes", folder / "images", "--labels", folder / "labels.csv", "--backbone", EMBEDDED_BACKBONE,
        "--search", "published", "--set", "estimation.n_init=1", "--quiet",
    )  # fmt: skip
    assert code == 0, err
    images, _, labels = small_set
    seed = derive_seed(0, "class count")
    expected = count_classes(frozen_features(images), labels, search="published", n_init=1, max_iter=200, seed=seed)
    assert f"{expected.n_classes} classes, 2 of them known (searched 2 to {len(images)})" in out
    assert expected.n_classes == max(expected.trials, key=lambda trial: trial.accuracy).n_classes


def test_the_command_shows_and_writes_every_trial(promptcal, folder, tmp_path):
    settings = [part for s in SMALL for part in ("--set", s)]
    code, out, err = promptcal(
        "estimate-classes", folder / "images", "--labels", folder / "labels.csv", "--backbone", EMBEDDED_BACKBONE,
        "--output", tmp_path / "curves", "--quiet", *settings,
    )  # fmt: skip
    assert code == 0, err
    count = json.loads((tmp_path / "curves" / "class-count.json").read_text())
    assert f"{count['n_classes']} classes, 2 of them known (searched 2 to 8)" in out
    with (tmp_path / "curves" / "class-count.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["classes"]) for row in rows] == [trial["n_classes"] for trial in count["trials"]]
    best = max(count["trials"], key=lambda trial: trial["accuracy"])
    for row, trial in zip(rows, count["trials"], strict=True):
        assert float(row["accuracy"]) == pytest.approx(trial["accuracy"], abs=1e-6)
        assert re.search(rf"│ +{trial['n_classes']} │ +{100 * trial['accuracy']:.1f} │", out)
        if trial["n_classes"] == count["n_classes"]:
            assert trial["accuracy"] > best["accuracy"] - 0.1
    assert re.search(rf"│ estimate │ +{count['n_classes']} │", out)
    with Image.open(tmp_path / "curves" / "class-count.png") as picture:
        assert picture.size == (720, 840)
        assert len(np.unique(np.asarray(picture))) > 50  # something is drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-classes", "2"], "above the 2 known classes"),
        (["--run", "nowhere"], "nowhere is not a run directory"),
        (["--run", "nowhere", "--backbone", "vit_base_patch16_224.dino"], "a run has its own backbone"),
    ],
)
def test_wrong_input_of_estimate_classes_is_one_sentence(promptcal, folder, arguments, message):
    backbone = [] if "--run" in arguments else ["--backbone", EMBEDDED_BACKBONE]
    code, _, err = promptcal(
        "estimate-classes", folder / "images", "--labels", folder / "labels.csv", *backbone, *arguments, "--quiet"
    )
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_labels_of_two_classes_are_needed(small_set):
    with pytest.raises(LabelError, match="at least 2 classes"):
        estimate_classes(images=small_set[0], backbone=EMBEDDED_BACKBONE, progress=False)


@pytest.fixture(scope="module")
def auto_run(small_set, common_settings):
    def run(output, **options):
        images, _, labels = small_set
        return fit(
            images=images, labels=labels, n_classes="auto", method="kmeans", output=output, report=False,
            overrides=(*common_settings, "model.image_size=32", *SMALL), **{"progress": False, **options},
    )  # fmt: skip

    return run


def test_auto_estimates_and_records_the_number(auto_run, small_set, tmp_path, capsys):
    run = auto_run(tmp_path / "run", progress=True)
    said = next(line for line in capsys.readouterr().err.splitlines() if "is estimated" in line)
    count = ClassCount.read(run.path / "class-count.json")
    assert said == (
        f"The number of categories is estimated: {count.description}, 2 of them known ({count.reason}); --n-classes "
        "sets another number"
    )
    images, _, labels = small_set
    expected = estimate_classes(
        images=images, labels=labels, backbone=EMBEDDED_BACKBONE, overrides=SMALL, progress=False
    )
    assert run.config.n_classes == run.info.n_classes == expected.n_classes
    assert run.config.n_classes_estimated is run.info.n_classes_estimated is True
    assert len(run.names) == expected.n_classes
    written = json.loads((run.path / "class-count.json").read_text())
    assert [trial["n_classes"] for trial in written["trials"]] == [trial.n_classes for trial in expected.trials]
    in_its_network = estimate_classes(images=images, labels=labels, run=run, progress=False)
    assert in_its_network.trials == expected.trials  # k-means trains nothing, so its network is the backbone


def test_a_resumed_run_keeps_its_number(auto_run, tmp_path, monkeypatch):
    run = auto_run(tmp_path / "run")
    run.directory.update_info(status="running")
    monkeypatch.setattr(prepare, "count_from_features", None)  # a second estimate would fail
    resumed = auto_run(run.path, resume=True)
    assert resumed.config == run.config
    assert (run.path / "class-count.csv").exists()


def test_an_estimated_run_is_not_resumed_with_a_number_given(auto_run, small_set, common_settings, tmp_path):
    run = auto_run(tmp_path / "run")
    run.directory.update_info(status="running")
    with pytest.raises(RunError, match="has n_classes_estimated=True; give the same settings"):
        fit(
            images=small_set[0], labels=small_set[2], n_classes=run.config.n_classes, method="kmeans",
            output=run.path, overrides=(*common_settings, "model.image_size=32", *SMALL), resume=True, progress=False,
            report=False,
        )  # fmt: skip


def test_auto_starts_at_the_upper_end_and_merges_what_looks_the_same(common_settings, tmp_path, capsys):
    """Five known and two new classes: the number has an interval, and parts of one class are merged afterwards."""
    data = embedded_set("train")
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:24] for c in range(7)])
    truth = data.labels[chosen]
    labels = np.where((truth < 5) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    output = tmp_path / "run"
    run = fit(
        images=data.images[chosen], labels=labels, n_classes="auto", method="kmeans", output=output, progress=True,
        report=False, overrides=(*common_settings, "model.image_size=32"),
    )  # fmt: skip
    said = capsys.readouterr().err
    count = ClassCount.read(output / "class-count.json")
    assert f"Training starts with {count.start}, the upper end; afterwards there can be fewer categories" in said
    assert count.interval is not None
    assert count.interval[0] <= 7 <= count.interval[1]
    results = run.directory.results()
    assert run.config.n_classes == count.interval[1]
    merged = results.automatic_merges
    assert len(run.names) == run.info.n_classes == count.interval[1] - len(merged) >= count.interval[0]
    assert {merge.into for merge in merged} <= set(run.names)
    text = describe_merges(run, merged)
    if merged:
        assert f"training started with {count.interval[1]} categories, and {len(merged)} of them" in text
    else:
        assert "no two categories were similar enough" in text
    with (output / "categories.csv").open() as file:
        rows = list(csv.DictReader(file))
    described = results.categories.categories
    assert [row["name"] for row in rows] == run.names == [category.name for category in described]
    found = run.assignments()
    unit = unit_centroids(run.embeddings(), found.clusters, len(run.names))
    for row, category in zip(rows, described, strict=True):
        c = category.cluster
        cosines = {k: unit[c] @ unit[k] for k in range(5) if k != c}
        nearest = max(cosines, key=cosines.get)
        assert row["nearest_known"] == category.nearest_known == run.names[nearest]
        assert category.distance == pytest.approx(1 - cosines[nearest], abs=1e-5)
        assert int(row["images"]) == (found.clusters == c).sum()


def test_fit_takes_auto_or_a_number_and_nothing_else(promptcal, folder, tmp_path):
    code, _, err = promptcal("fit", folder / "images", "--output", tmp_path / "run", "--n-classes", "many")
    assert code == 2
    assert "'many' is neither a whole number nor auto" in err


def test_a_merge_is_told_with_the_final_category_of_its_images():
    """Of clusters 1 to 3 that are merged, two images join, then one; most of all are in category 0 in the end."""
    found = FoundMerges(np.array([0, 1, 1, 2, 2, 3]), 4, [ClusterMerge(1, 2, 0.5, 0.1), ClusterMerge(1, 3, 0.4, 0.1)])
    assert found.n_left == 2
    final = Partition(np.array([1, 0, 0, 0, 1, 0]), torch.eye(2), torch.tensor([7, 8]))
    assert [(joined.into, joined.images) for joined in found.joined(final)] == [(7, 2), (7, 1)]


@pytest.mark.parametrize(
    ("merges", "end"), [(None, 11), ([], 11), ([AutomaticMerge(into="a", images=9, connection=1, false_rate=0)], 10)]
)
def test_a_number_by_agreement_is_told(merges, end):
    run = SimpleNamespace(
        info=SimpleNamespace(n_classes_estimated=True), config=SimpleNamespace(n_classes=11), names=[*"abcdefghi"]
    )
    assert describe_merges(run, merges).endswith(f" Of the numbers up to {end}, the read-outs agree most on 9.")
    run.names = [*run.names, *"jk"][:end]
    assert "agree" not in describe_merges(run, merges)


@pytest.mark.parametrize("is_wide", [True, False])
def test_the_read_out_has_as_many_categories_as_are_left(tmp_path, monkeypatch, is_wide):
    """Five of seven directions are known, and the interval ends above seven. Parts are merged if the interval is wide;
    otherwise the read-outs of its numbers are compared. Nothing is written."""
    if is_wide:
        monkeypatch.setattr(search, "_MOST_NUMBERS", 1)
    generator = np.random.default_rng(0)
    truth = np.repeat(np.arange(7), 60)
    rows = 3 * np.eye(7, 16)[truth] + 0.4 * generator.normal(size=(len(truth), 16))
    labels = np.where((truth < 5) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    features = FeatureSet.of(rows)
    values = features_settings(features.width) | {"clustering": {"readout": "head", "n_init": 4}}
    settings = Settings(Layers.of(values=values).merged(METHODS["features"]))
    problem = Problem(features.pictures(None), labels, [f"class {number}" for number in range(5)])
    session = Session(RunDirectory(tmp_path / "run"), settings.draft(5), Console(quiet=True))
    found = discover(problem, features.embeddings(), settings, session)
    outcome = found.outcome
    low, high = found.count.interval
    assert low <= 7 < high
    if is_wide:
        assert 0 < len(outcome.merges) == high - 7
        assert {merge.into for merge in outcome.merges} <= set(outcome.assignments.names)
    else:
        assert outcome.merges is None
    assert len(outcome.assignments.names) == 7
    assert len(outcome.partition.head.bias) == len(outcome.partition.centroids) == 7
    assert outcome.assignments.clusters.max() == 6
    assert contingency_table(truth, outcome.assignments.clusters, 7, 7).max(axis=1).sum() > 0.97 * len(truth)
    assert list(tmp_path.iterdir()) == []


def agreement_task(tmp_path, interval, **clustering):
    """Three known and three new directions, and the interval of the estimate; its end is the number of categories."""
    generator = np.random.default_rng(1)
    truth = np.repeat(np.arange(6), 50)
    features = FeatureSet.of(3 * np.eye(6, 12)[truth] + 0.7 * generator.normal(size=(len(truth), 12)))
    labels = np.where((truth < 3) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    values = features_settings(features.width)
    values = {**values, "clustering": {**values["clustering"], **clustering}, "n_classes": interval[1]}
    config = Settings(Layers.of(values=values).merged(METHODS["features"])).config()
    method = METHODS["features"](config)
    network = method.build(3, pretrained=False)
    problem = Problem(features.pictures(None), labels, ["a", "b", "c"])
    task = Task(
        problem=problem, config=config, method=method, network=network, held_out=np.full(len(truth), -1),
        previous=None, released=frozenset(), keep_confirmed=False, pictures=None, count_interval=interval,
    )  # fmt: skip
    session = Session(RunDirectory(tmp_path / "run"), config, Console(quiet=True))
    return task, method.assignment(network), features.embeddings(), session


def test_the_number_is_the_one_on_which_complete_read_outs_agree_most(tmp_path):
    task, assignment, features, session = agreement_task(tmp_path, (2, 8))
    agreement = {}
    for number in range(4, 9):  # with the 3 known classes alone, there is nothing to compare
        partition = final_partition(task.with_n_classes(number), assignment, features, session).partition
        agreement[number] = partition.stability[task.problem.labels < 0].mean()
    assert max(agreement, key=agreement.get) == 6
    assert agreement[6] > max(agreement[5], agreement[7]) + 0.02
    assert agreed_number(task, assignment, features, session) == 6


def test_numbers_are_compared_on_one_part_with_all_labels(tmp_path, monkeypatch):
    """Of 300 images, 75 are labelled: a part of 150 has them and a third of the others, with three times the weight."""
    monkeypatch.setattr(search, "_MOST_ROWS", 150)
    task, assignment, features, session = agreement_task(tmp_path, (5, 7))
    compared, agreement = [], search._agreement

    def recorded(rows, labels, task, weight, seed):
        compared.append((rows, labels, task.config.n_classes, weight, agreement(rows, labels, task, weight, seed)))
        return compared[-1][-1]

    monkeypatch.setattr(search, "_agreement", recorded)
    assert agreed_number(task, assignment, features, session) == 6
    assert [number for _, _, number, _, _ in compared] == [7, 6, 5]
    everywhere = {tuple(row): label for row, label in zip(features.tolist(), task.problem.labels, strict=True)}
    for rows, labels, _, weight, _ in compared:
        assert [everywhere[tuple(row)] for row in rows.tolist()] == labels.tolist()
        assert len(np.unique(rows, axis=0)) == len(rows) == 150
        assert ((labels >= 0).sum(), weight) == (75, 3)
        assert torch.equal(rows, compared[0][0])
    first = [found[-1] for found in compared]
    agreed_number(task, assignment, features, session)
    assert [found[-1] for found in compared[3:]] == first


def test_all_numbers_have_one_progress_bar(tmp_path, monkeypatch):
    monkeypatch.setenv(LINES_VARIABLE, "1")
    task, assignment, features, session = agreement_task(tmp_path, (5, 7))
    session.console = Console(file=io.StringIO(), width=200)
    agreed_number(task, assignment, features, session)
    lines = session.console.file.getvalue().splitlines()
    assert {line.partition(":")[0] for line in lines} == {"comparing numbers of categories"}
    assert lines[-1].endswith(": 3 of 3")


@pytest.mark.parametrize(
    ("interval", "right", "expected"),
    [
        ((5, 12), 9, [12, 11, 10, 9, 8, 7, 6, 5]),
        ((5, 20), 9, [20, 18, 16, 14, 12, 10, 8, 6, 11, 9]),
        ((5, 20), 6, [20, 18, 16, 14, 12, 10, 8, 6, 7, 5]),
        ((5, 20), 20, [20, 18, 16, 14, 12, 10, 8, 6, 19]),
    ],
)
def test_of_many_numbers_every_second_one_is_tried_and_those_beside_the_best(
    tmp_path, monkeypatch, interval, right, expected
):
    task, assignment, features, session = agreement_task(tmp_path, interval)
    done = []

    def agreement(rows, labels, task, *given):
        done.append(task.config.n_classes)
        return 1 - abs(task.config.n_classes - right - 0.1) / 100

    monkeypatch.setattr(search, "_agreement", agreement)
    assert agreed_number(task, assignment, features, session) == right
    assert done == expected


@pytest.mark.parametrize(
    ("interval", "change", "clustering"),
    [((6, 7), {"count_interval": None}, {}), ((4, 20), {}, {}), ((6, 7), {}, {"readout": "kmeans"})],
    ids=["a given number", "a wide interval", "k-means"],
)
def test_otherwise_the_number_stays(tmp_path, monkeypatch, interval, change, clustering):
    task, assignment, features, session = agreement_task(tmp_path, interval, **clustering)
    monkeypatch.setattr(search, "_agreement", None)
    assert agreed_number(replace(task, **change), assignment, features, session) == interval[1]
