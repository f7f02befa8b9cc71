"""Continue a run with new labels: numbers, names and weights persist, and what moved is recorded."""

import csv
import functools
import itertools
import json
import shutil
import signal
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from promptcal.api import evaluate, fit, predict
from promptcal.data import embedded_set
from promptcal.data.images import ImageSet
from promptcal.data.splits import hold_out
from promptcal.errors import ConfigError, Interrupted, LabelError, PromptCALWarning, RunError
from promptcal.methods import load_config
from promptcal.methods.rankstats import RankStatsNetwork
from promptcal.models import PromptedViT
from promptcal.pipeline.inputs import read_problem
from promptcal.pipeline.previous_run import PreviousRun, numbering
from promptcal.pipeline.request import FitRequest
from promptcal.report.attention_panels import Examples, attention_maps
from promptcal.report.page_data import changes_record, cluster_records
from promptcal.report.report_inputs import ReportInputs
from promptcal.run import Assignments, Run
from promptcal.run.changes import Changes
from promptcal.training.loop import Loop

UNTRAINED = ("optim.epochs=0", "tensorboard=false")
SHORT = ("warmup.epochs=1", "affinity.epochs=1", "tensorboard=false")


@pytest.fixture(scope="module")
def first(tmp_path_factory, apes_and_bees, whole_size_settings):
    """A finished run of image files with two known and two new categories, and labels to continue it with."""
    images, labels = apes_and_bees
    run = fit(
        images=images,
        labels=labels,
        n_classes=4,
        output=tmp_path_factory.mktemp("loop") / "run",
        progress=False,
        overrides=[*whole_size_settings, *SHORT, "data.validation_fraction=0.4"],
        report=False,
    )
    assert run.names == ["ape", "bee", "new-1", "new-2"]
    found = run.assignments()
    members = [n for n, c in zip(found.paths, found.clusters, strict=True) if c == 3]
    to_name = dict.fromkeys(members[:4], "goose")
    return SimpleNamespace(run=run, images=images, names=found.paths, labels=labels, to_name=to_name)


def continue_run(first, output, labels=None, images=None, start_from=None, **options):
    labels = first.to_name if labels is None else labels
    return fit(
        images=first.images if images is None else images, labels=labels, output=output, progress=False,
        start_from=first.run.path if start_from is None else start_from, **{"keep": "trained"} | options, report=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def second(first, tmp_path_factory):
    """The same images with a few of category 3 labelled goose."""
    return continue_run(first, tmp_path_factory.mktemp("second") / "run")


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def test_numbers_and_names_stay_and_the_named_category_is_known(first, second):
    assert second.names == ["ape", "bee", "new-1", "goose"]
    assert second.known == [True, True, False, True]
    table = rows(second.path / "assignments.csv")
    for row in table.values():
        assert row["name"] == second.names[int(row["cluster"])]
        assert row["kind"] == ("new" if row["name"] == "new-1" else "known")
    for path, label in {**first.labels, **first.to_name}.items():  # labels of the previous run stay labels
        assert (table[path]["name"], table[path]["labelled"]) == (label, "yes")
    assert sum(row["labelled"] == "yes" for row in table.values()) == len(first.labels) + 4


def test_only_the_last_stage_is_trained(second):
    records = [json.loads(line) for line in (second.path / "metrics.jsonl").read_text().splitlines()]
    assert [(r["stage"], r["epoch"]) for r in records] == [("affinity", 1)]
    assert sorted(p.name for p in (second.path / "checkpoints").iterdir()) == ["affinity-best.safetensors", "last.pt"]


def test_it_starts_from_the_previous_weights(first, second, tmp_path):
    again = continue_run(first, tmp_path / "run", overrides=["affinity.epochs=0"])
    before, same, trained = (load_file(run.path / "model.safetensors") for run in (first.run, again, second))
    assert all(np.array_equal(before[k], same[k]) for k in before)
    assert not all(np.array_equal(before[k], trained[k]) for k in before)
    assert np.array_equal(np.load(first.run.path / "embeddings.npy"), np.load(again.path / "embeddings.npy"))


def test_the_recorded_changes_are_the_differences_between_the_two_tables(first, second):
    old, new = rows(first.run.path / "assignments.csv"), rows(second.path / "assignments.csv")
    differ = {p: (old[p]["name"], new[p]["name"]) for p in old if old[p]["cluster"] != new[p]["cluster"]}
    recorded = rows(second.path / "changes.csv")
    assert {p: (r["from_name"], r["to_name"]) for p, r in recorded.items()} == differ
    for path, row in recorded.items():
        assert (row["from_cluster"], row["to_cluster"]) == (old[path]["cluster"], new[path]["cluster"])
        assert (row["confidence"], row["labelled"]) == (new[path]["confidence"], new[path]["labelled"])
    summary = json.loads((second.path / "changes.json").read_text())
    assert summary == json.loads((second.path / "results.json").read_text())["changes"]
    assert (summary["images"], summary["moved"], summary["added"], summary["missing"]) == (48, len(differ), 0, 0)
    assert summary["renamed"] == [{"cluster": 3, "old_name": "new-2", "new_name": "goose"}]
    assert sum(flow["images"] for flow in summary["flows"]) == len(differ)
    assert summary["previous_run"] == str(first.run.path)


def test_an_empty_label_removes_a_previous_label_and_a_missing_one_does_not(first, tmp_path):
    wrong, kept = list(first.labels)[:2]
    table = tmp_path / "labels.csv"
    table.write_text(f"path,label\n{wrong},\n" + "".join(f"{p},{n}\n" for p, n in first.to_name.items()))
    run = continue_run(first, tmp_path / "run", labels=table, overrides=["affinity.epochs=0"])
    found = rows(run.path / "assignments.csv")
    assert (found[wrong]["labelled"], found[kept]["labelled"]) == ("no", "yes")
    assert sum(row["labelled"] == "yes" for row in found.values()) == len(first.labels) - 1 + len(first.to_name)


def test_labels_can_merge_categories(first, promptcal, tmp_path):
    """As the report writes it: all images of both categories, except those marked wrong, get the same name."""
    found = first.run.assignments()
    both = [p for p, c in zip(found.paths, found.clusters, strict=True) if c >= 2]
    lines = ["path,label", *(f"{p},new-1" for p in both[1:]), f"{both[0]},"]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    code, _, err = promptcal(
        "fit", first.images, "--labels", tmp_path / "labels.csv", "--from", first.run.path,
        "--output", tmp_path / "run", "--set", "affinity.epochs=0", "--no-report",
    )  # fmt: skip
    assert code == 0
    assert "The labels merge new-2 into other categories, so the number of categories is now 3" in err
    run = Run(tmp_path / "run")
    assert (run.names, run.known) == (["ape", "bee", "new-1"], [True] * 3)
    changes = json.loads((run.path / "changes.json").read_text())
    members = int((found.clusters == 3).sum())
    assert changes["removed_categories"] == [{"cluster": 3, "name": "new-2", "images": members, "into": "new-1"}]
    assert changes["renamed"] == changes["added_categories"] == []
    same = continue_run(
        first, tmp_path / "same", labels=tmp_path / "labels.csv", n_classes=4, overrides=["affinity.epochs=0"]
    )
    assert len(same.names) == 4
    assert same.names[3] not in ("new-1", "new-2")  # what is found instead is a different category
    changes = json.loads((same.path / "changes.json").read_text())
    assert [removed["name"] for removed in changes["removed_categories"]] == ["new-2"]
    assert changes["added_categories"] == [{"cluster": 3, "name": "new-3"}]
    assert changes["renamed"] == []


def test_categories_persist_where_images_or_the_name_stayed():
    generator = np.random.default_rng(1)
    for _ in range(40):
        previous = ["ape", *(f"new-{i}" for i in range(1, 5))]
        names = ["ape", *generator.permutation(["new-1", "new-2", "owl", "new-9"]).tolist()][: generator.integers(3, 6)]
        before, clusters = generator.integers(-1, 5, size=9), generator.integers(len(names), size=9)
        now = Assignments(
            [str(i) for i in range(9)], clusters, np.ones(9), names, [True] * len(names), np.zeros(9, dtype=bool),
            np.full(9, -1), np.zeros(9),
        )  # fmt: skip
        summary = Changes("run", previous, before, now, 9).summary()
        persisting = []
        for c in range(min(5, len(names))):
            stayed = [i for i in range(9) if before[i] == c and clusters[i] == c]
            persisting += [c] if stayed or previous[c] == names[c] else []
        assert [(r.cluster, r.old_name, r.new_name) for r in summary.renamed] == [
            (c, previous[c], names[c]) for c in persisting if previous[c] != names[c]
        ]
        assert [a.cluster for a in summary.added_categories] == [c for c in range(len(names)) if c not in persisting]
        assert [v.cluster for v in summary.removed_categories] == [c for c in range(5) if c not in persisting]
        for removed in summary.removed_categories:
            moved_to = [names[clusters[i]] for i in range(9) if before[i] == removed.cluster]
            most = [name for name in names if 2 * moved_to.count(name) > len(moved_to)]
            assert (removed.images, removed.into) == (len(moved_to), most[0] if most else None)


def test_predict_and_evaluate_use_the_kept_numbers(first, second):
    found, again = second.assignments(), predict(run=second.path, images=first.images, progress=False)
    free = ~found.labelled
    assert np.array_equal(again.clusters[free], found.clusters[free])
    assert evaluate(run=second, truth=dict(zip(found.paths, found.categories, strict=True))).all == 1.0


def test_the_report_knows_which_categories_are_known(second):
    analysis = ReportInputs.load(second, Console(quiet=True)).analysis
    assert [c["known"] for c in cluster_records(analysis)] == [True, True, False, True]
    assert analysis.display_names() == ["ape", "bee", "new 1", "goose"]
    truth = [name if name != "new-1" else "owl" for name in analysis.assignments.categories]
    matrix = replace(analysis, truth=truth).confusion
    assert (matrix.classes, matrix.clusters) == (["ape", "bee", "goose", "owl"], [0, 1, 3, 2])
    assert np.array_equal(matrix.counts, np.diag(np.diag(matrix.counts)))


def test_attention_maps_are_of_the_previous_run_and_of_the_new_stage(first, second, tmp_path):
    def maps_of(path):
        run = Run(path, "cpu")
        return attention_maps(run, run.directory.results(), examples)

    examples = Examples.read(second.directory.examples_file)
    before, maps = maps_of(first.run.path), maps_of(second.path)
    assert (len(before.steps), len(maps.steps), maps.missing) == (3, 3, "")
    assert (maps.steps[:2], maps.steps[2]) == (["pretrained", "previous run"], before.steps[2])
    assert np.allclose(maps.maps[:, :2], before.maps[:, ::2], atol=1e-6)
    assert np.abs(maps.maps[:, 2] - maps.maps[:, 1]).max() > 1e-6
    alone = shutil.copytree(second.path, tmp_path / "run")
    info = json.loads((alone / "run.json").read_text())
    (alone / "run.json").write_text(json.dumps(info | {"started_from": str(tmp_path / "gone")}))
    assert maps_of(alone).steps == [maps.steps[0], maps.steps[2]]
    assert "The maps of the previous run are missing" in maps_of(alone).missing


def test_images_may_be_added_and_missing_in_a_third_run(first, second, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for name in first.names[6:]:
        (images / name).write_bytes((first.images / name).read_bytes())
    for i, image in enumerate(embedded_set("test").images[:5]):
        Image.fromarray(image).save(images / f"fresh-{i}.png")
    third = fit(images=images, start_from=second.path, output=tmp_path / "run", progress=False, report=False)
    assert third.names == second.names
    assert third.info.former_names == ["new-2"]
    summary = json.loads((third.path / "changes.json").read_text())
    assert (summary["images"], summary["added"], summary["missing"]) == (42, 5, 6)
    assert not any("fresh" in path for path in rows(third.path / "changes.csv"))
    labelled = {p for p, row in rows(third.path / "assignments.csv").items() if row["labelled"] == "yes"}
    assert labelled == {p for p in {**first.labels, **first.to_name} if p in first.names[6:]}


def test_labels_used_in_training_are_not_held_out_later(first, second):
    learned = set(first.labels) - set(first.run.directory.held_out().paths)
    assert len(first.run.directory.held_out().paths) == 4  # 0.4 of 6 of each of 2 classes, rounded
    assert second.directory.held_out().paths
    assert not set(second.directory.held_out().paths) & learned
    labels = np.array([0, 0, 0, 1, 1, -1])
    allowed = np.array([True, False, False, False, False, True])
    assert hold_out(labels, 0.5, 0, allowed).tolist() == [True, False, False, False, False, False]


@pytest.mark.slow
def test_an_interrupted_and_resumed_run_ends_the_same(first, second, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        step, steps = Loop.step, itertools.count(1)

        def interrupted_step(self, *given):
            step(self, *given)
            if next(steps) == 2:
                signal.raise_signal(signal.SIGINT)

        patch.setattr(Loop, "step", interrupted_step)
        with pytest.raises(Interrupted):
            continue_run(first, tmp_path / "run")
    with pytest.raises(RunError, match="continues .* add --from"):
        fit(images=first.images, labels=first.to_name, n_classes=4, output=tmp_path / "run", resume=True, report=False)
    resumed = continue_run(first, tmp_path / "run", resume=True)
    for file in ("assignments.csv", "embeddings.npy", "changes.csv", "model.safetensors", "calibration.json"):
        assert (resumed.path / file).read_bytes() == (second.path / file).read_bytes()


@pytest.mark.slow
def test_a_run_without_labels_keeps_its_names_and_all_stages_are_trained(first, whole_size_settings, tmp_path):
    with pytest.warns(UserWarning, match="plain k-means"):
        plain = fit(
            images=first.images, n_classes=4, output=tmp_path / "plain", progress=False,
            overrides=[*whole_size_settings, *SHORT], report=False,
    )  # fmt: skip
    found = plain.assignments()
    with pytest.warns(UserWarning, match="plain k-means"):
        same = continue_run(first, tmp_path / "same", labels={}, start_from=plain.path)
    assert same.assignments().categories == found.categories
    chosen = [n for n, c in zip(found.paths, found.clusters, strict=True) if c == 1][:4]
    run = fit(
        images=first.images, labels=dict.fromkeys(chosen, "goose"), method="promptcal", start_from=plain.path,
        output=tmp_path / "run", progress=False, overrides=[*whole_size_settings, *SHORT], report=False,
    )  # fmt: skip
    assert run.names == ["new-1", "goose", "new-3", "new-4"]
    assert run.known == [False, True, False, False]
    stages = [json.loads(line)["stage"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert stages == ["warmup", "affinity"]
    assert run.config.model.prompts == 5


def numbers_and_names(*arguments):
    numbers, names = numbering(*arguments)
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(set(names)) == len(names)
    return numbers.tolist(), names


def test_numbering_by_hand():
    previous = ["ape", "bee", "new-1", "new-2"]
    before = np.array([0, 0, 1, 1, 2, 2, 2, 3, 3, 3])
    labels = np.array([0, -1, 1, -1, -1, -1, -1, -1, -1, -1])
    # the same again, found in the other order
    clusters = np.array([0, 0, 1, 1, 3, 3, 3, 2, 2, 2])
    assert numbers_and_names(previous, before, ["ape", "bee"], labels, clusters, 4) == ([0, 1, 3, 2], previous)
    # new-2 is named cow, which comes between ape's and bee's numbers only in the alphabet
    named = np.array([0, -1, 2, -1, -1, -1, -1, 1, -1, -1])
    clusters = np.array([0, 0, 2, 2, 3, 3, 3, 1, 1, 1])
    found = numbers_and_names(previous, before, ["ape", "asp", "bee"], named, clusters, 4)
    assert found == ([0, 3, 1, 2], ["ape", "bee", "new-1", "asp"])


def test_numbering_of_split_and_renamed_categories():
    previous = ["ape", "bee", "new-1"]
    before = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    # part of ape's images are labelled asp: no category was named by that, so it takes the number that is left
    labels = np.array([0, 1, 1, 2, -1, -1, -1, -1])
    clusters = np.array([0, 1, 1, 2, 2, 3, 3, 3])
    assert numbers_and_names(previous, before, ["ape", "asp", "bee"], labels, clusters, 4) == (
        [0, 3, 1, 2], ["ape", "bee", "new-1", "asp"],
    )  # fmt: skip
    # all of ape's labels now say asp: the same category under another name
    renamed = np.array([0, 0, 0, 1, -1, -1, -1, -1])
    clusters = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    assert numbers_and_names(previous, before, ["asp", "bee"], renamed, clusters, 3) == (
        [0, 1, 2], ["asp", "bee", "new-1"],
    )  # fmt: skip
    # new-1 was split: the larger part keeps number and name, the other gets new ones
    labels = np.array([0, -1, -1, 1, -1, -1, -1, -1])
    clusters = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    assert numbers_and_names(previous, before, ["ape", "bee"], labels, clusters, 4) == (
        [0, 1, 3, 2], ["ape", "bee", "new-1", "new-2"],
    )  # fmt: skip


def test_numbering_keeps_what_it_can_when_there_are_fewer_categories():
    previous = ["ape", "new-1", "new-2", "new-3"]
    before = np.array([0, 1, 1, 2, 3, 3, 3, -1])
    labels = np.array([0, -1, -1, -1, -1, -1, -1, -1])
    clusters = np.array([0, 2, 2, 1, 1, 1, 1, 1])
    assert numbers_and_names(previous, before, ["ape"], labels, clusters, 3) == (
        [0, 2, 1], ["ape", "new-1", "new-3"],
    )  # fmt: skip


def test_a_former_name_is_not_used_again():
    """new-2 became goose in a previous run, so the next new category is new-3."""
    previous, before = ["goose", "new-1"], np.array([0, 0, 1, -1])
    labels, clusters = np.array([0, -1, -1, -1]), np.array([0, 0, 1, 2])
    names = numbering(previous, before, ["goose"], labels, clusters, 3, ["new-2"])[1]
    assert names == ["goose", "new-1", "new-3"]


def test_numbering_matches_as_many_images_as_possible():
    generator = np.random.default_rng(0)
    for _ in range(30):
        before, clusters = generator.integers(5, size=60), generator.integers(5, size=60)
        numbers, _ = numbering([f"new-{i}" for i in range(1, 6)], before, [], np.full(60, -1), clusters, 5)
        stayed = int((numbers[clusters] == before).sum())
        assert stayed == max(
            int((np.array(other)[clusters] == before).sum()) for other in itertools.permutations(range(5))
        )


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"backbone": "vit_small_patch16_224"}, ConfigError, "model.backbone=vit_tiny_patch4_32.promptcal"),
        ({"overrides": ["model.prompts=3"]}, ConfigError, "model.prompts=5"),
        ({"method": "gcd"}, ConfigError, "has method=promptcal and cannot be continued with gcd"),
        ({"overrides": ["method=gcd"]}, ConfigError, "has method=promptcal and cannot be continued with gcd"),
        ({"overrides": ["variant=paper"]}, ConfigError, "variant=recommended cannot be changed to variant=paper"),
        ({"preset": "quick"}, ConfigError, "takes its settings from"),
        (
            {"labels": {f"{i:03d}.png": f"class {i}" for i in range(1, 8)}, "n_classes": 4},
            LabelError,
            "--n-classes is 4",
        ),
    ],
)
def test_what_does_not_fit_is_rejected_in_a_sentence(first, tmp_path, options, error, named):
    with pytest.raises(error, match=named.replace(".", r"\.")):
        continue_run(first, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_the_previous_run_is_not_overwritten(first):
    before = (first.run.path / "assignments.csv").read_bytes()
    with pytest.raises(RunError, match="choose another --output"):
        continue_run(first, first.run.path, overwrite=True)
    assert (first.run.path / "assignments.csv").read_bytes() == before


@pytest.fixture(scope="module")
def classifier_run(first, common_settings, tmp_path_factory):
    """An untrained run of a method with a classifier, and the images of each of its categories."""

    @functools.cache
    def run(method):
        made = fit(
            images=first.images, labels=first.labels, n_classes=4, method=method, progress=False,
            output=tmp_path_factory.mktemp(method) / "run",
            overrides=[*common_settings, "model.image_size=32", *UNTRAINED], report=False,
    )  # fmt: skip
        found = made.assignments()
        members = [[p for p, c in zip(found.paths, found.clusters, strict=True) if c == k] for k in range(4)]
        return made, members

    return run


@pytest.mark.parametrize("method", ["simgcd", "orca", "rankstats"])
def test_the_outputs_of_a_classifier_keep_their_categories(first, classifier_run, tmp_path, method):
    run, members = classifier_run(method)
    # the new name is the first in the alphabet: its output moves from the last place to the first
    where = max((2, 3), key=lambda c: len(members[c]))
    labels = dict.fromkeys(members[where][:4], "aardvark")
    plain = {"images": first.images, "labels": labels, "start_from": run.path, "progress": False}
    still = fit(output=tmp_path / "still", overrides=UNTRAINED, **plain, report=False)
    assert [name for c, name in enumerate(still.names) if c != where] == [
        n for c, n in enumerate(run.names) if c != where
    ]
    assert (still.names[where], still.known[where]) == ("aardvark", True)
    features = run.embed(first.images, progress=False)[1]
    assert torch.allclose(still.embed(first.images, progress=False)[1], features)
    assert torch.allclose(still.scores(features)[0], run.scores(features)[0], atol=1e-5)
    before, after = run.assignments(), still.assignments()
    assert np.array_equal(after.clusters, np.where([p in labels for p in after.paths], where, before.clusters))
    careful = fit(output=tmp_path / "careful", overrides=["optim.epochs=1"], **plain, report=False)
    comparison = careful.directory.results().comparison
    assert comparison.first.n_held_out > 0
    is_same = torch.allclose(careful.scores(features)[0], run.scores(features)[0], atol=1e-5)
    assert is_same == (comparison.kept == "first")
    if is_same:  # the untrained result, although training has changed the network since
        assert np.array_equal(careful.assignments().clusters, after.clusters)
    if method != "simgcd":
        return
    learned = fit(output=tmp_path / "learned", overrides=["optim.epochs=1"], keep="trained", **plain, report=False)
    assert learned.names == still.names
    assert not torch.allclose(learned.scores(features)[0], run.scores(features)[0], atol=1e-5)


def test_a_classifier_loads_rows_in_another_order():
    torch.manual_seed(0)
    vit = PromptedViT("vit_tiny_patch4_32.promptcal", prompts=0, pretrained=False)
    config = load_config(preset="quick", values={"n_classes": 5, "method": "rankstats"})
    network = RankStatsNetwork(vit, config)
    fresh = {k: v.clone() for k, v in network.state_dict().items()}
    state = {k: torch.randn(4 if "classifier" in k else v.shape[0], *v.shape[1:]) for k, v in fresh.items()}
    network.load_previous(state, lambda: [3, -1, 0, 2, -1])
    for name, value in network.state_dict().items():
        if "classifier" in name:
            expected = torch.stack([state[name][3], fresh[name][1], state[name][0], state[name][2], fresh[name][4]])
        else:
            expected = state[name]
        assert torch.equal(value, expected)


@pytest.mark.slow
def test_fewer_and_more_categories_of_a_classifier(first, classifier_run, tmp_path):
    run, members = classifier_run("simgcd")
    merged = dict.fromkeys([*members[2], *members[3]], "new-1")
    settings = {"images": first.images, "start_from": run.path, "progress": False}
    settings["overrides"] = UNTRAINED
    fewer = fit(labels=merged, output=tmp_path / "fewer", **settings, report=False)
    assert fewer.names == ["ape", "bee", "new-1"]
    more = fit(labels={}, n_classes=6, output=tmp_path / "more", **settings, report=False)
    assert more.names[:4] == run.names
    features = run.embed(first.images, progress=False)[1]
    assert torch.allclose(fewer.scores(features)[0], run.scores(features)[0][:, :3], atol=1e-5)
    again = fit(
        labels={}, n_classes=6, output=tmp_path / "again", **settings | {"overrides": ["optim.epochs=1"]}, report=False
    )
    assert again.directory.results().comparison is None  # the new outputs mean nothing before training
    outputs = more.network.classify(features)  # the added outputs are random, so they may take images of others
    assert outputs.shape[1] == 6
    assert torch.allclose(outputs[:, :4], run.scores(features)[0], atol=1e-5)


def test_new_categories_of_uno_cannot_become_known(first, classifier_run, tmp_path):
    run, _ = classifier_run("uno")
    with pytest.raises(ConfigError, match="the new categories of this method .* fit without --from"):
        fit(
            images=first.images,
            labels=first.to_name,
            start_from=run.path,
            output=tmp_path / "on",
            progress=False,
            report=False,
        )
    assert not (tmp_path / "on").exists()


@pytest.mark.slow
def test_the_command_says_how_many_moved(promptcal, first, second, tmp_path):
    lines = ["path,label", *(f"{name},{label}" for name, label in first.to_name.items())]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    code, out, err = promptcal(
        "fit", first.images, "--labels", tmp_path / "labels.csv", "--from", first.run.path, "--output",
        tmp_path / "run", "--keep", "trained", "--quiet", "--no-report",
    )  # fmt: skip
    assert code == 0, err
    moved = json.loads((second.path / "changes.json").read_text())["moved"]
    assert f"{moved} of 48 images moved to another category" in " ".join(out.split())
    assert Run(tmp_path / "run").assignments().to_csv() == second.assignments().to_csv()


@pytest.mark.parametrize("keep", [False, True])
def test_confirmed_categories_that_lose_images_are_reported_and_can_be_kept(
    apes_and_bees, fit_apes_and_bees, tmp_path, keep
):
    """Eight categories instead of five: apes and bees are split, unless they are kept."""
    run = fit_apes_and_bees(tmp_path / "run")
    with pytest.warns(PromptCALWarning, match="the confirmed category") as warned:
        more = fit(
            images=apes_and_bees.images, start_from=run.path, n_classes=8, keep_confirmed=keep,
            output=tmp_path / "more", progress=False,
        )  # fmt: skip
    before, after = run.assignments(), more.assignments()
    left = {
        name: sum(was == name != now for was, now in zip(before.categories, after.categories, strict=True))
        for name in ("ape", "bee")
    }
    losses = more.directory.results().changes.confirmed_losses
    assert losses
    assert all(loss.kept == keep for loss in losses)
    expected = dict.fromkeys(left, 0) if keep else {loss.name: loss.lost for loss in losses}
    assert {**dict.fromkeys(left, 0), **expected} == left
    assert all("categories without a name" in loss.into for loss in losses)
    messages = [str(warning.message) for warning in warned]
    advice = "without --keep-confirmed they move" if keep else "to keep them, fit again with --keep-confirmed"
    assert [m for m in messages if "confirmed category" in m] == [
        message for loss in losses for message in messages if message.startswith(loss.message()) and advice in message
    ]
    analysis = ReportInputs.load(more, Console(quiet=True)).analysis
    changes = changes_record(more.directory, more.directory.results(), analysis)
    assert changes["confirmedLosses"] == [{"message": loss.message(), "kept": keep} for loss in losses]


@pytest.fixture(scope="module")
def untrained(fit_apes_and_bees, tmp_path_factory):
    return fit_apes_and_bees(tmp_path_factory.mktemp("untrained") / "run")


def read_labels_of(run, images, labels):
    request = FitRequest(images=images, labels=labels, start_from=run.path, output="none")
    return read_problem(request, ImageSet.of(images), PreviousRun(run.path), Console(quiet=True))


def test_labels_that_bring_nothing_new_are_reported(untrained, apes_and_bees):
    images, labels = apes_and_bees
    some = dict(list(labels.items())[:2])
    for known in (labels, some):
        with pytest.warns(PromptCALWarning, match=f"bring nothing new: {untrained.path} has them all, perhaps because"):
            read_labels_of(untrained, images, known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_labels_of(untrained, images, None)  # no label file is given
        read_labels_of(untrained, images, {**labels, "001.png": "ape"})
        read_labels_of(untrained, images, {next(iter(labels)): "bee"})
        read_labels_of(untrained, images, {next(iter(labels)): ""})  # an empty label marks an image as wrong


@pytest.mark.parametrize(
    ("labels", "pair"), [({"001.png": "Ape"}, "'ape' and 'Ape'"), ({"047.png": "NEW-1"}, "'new-1' and 'NEW-1'")]
)
def test_labels_that_differ_only_in_letter_case_are_reported(untrained, apes_and_bees, labels, pair):
    with pytest.warns(PromptCALWarning, match=f"the labels {pair} differ only in letter case and are two categories"):
        problem, _ = read_labels_of(untrained, apes_and_bees.images, labels)
    assert set(labels.values()) < set(problem.classes)
