"""The first result: written before training, usable while it runs, and kept if training does not help."""

import html
import io
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import adjusted_rand_score

from promptcal.api import benchmark, evaluate, export, fit, make_report, name, predict
from promptcal.errors import ConfigError, Interrupted, PromptCALWarning, RunError
from promptcal.methods import METHODS, resolve
from promptcal.pipeline import comparison, finalize, first_result, prepare, scoring, time_limit
from promptcal.pipeline.comparison import Measured, is_preferred, stability
from promptcal.pipeline.inputs import read_inputs, settings_layers
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.request import FitRequest
from promptcal.run import Run, RunDirectory
from promptcal.run.accuracy_rows import accuracy_rows
from promptcal.run.results import Comparison, ResultQuality

HEAD = "clustering.readout=head"


@pytest.fixture
def options(small_set, quick_settings):
    images, truth, labels = small_set
    return {
        "images": images,
        "labels": [None if label < 0 else f"class {label}" for label in labels],
        "truth": [f"class {label}" for label in truth],
        "n_classes": 4,
        "overrides": (*quick_settings, "model.image_size=8", "warmup.epochs=1", "affinity.epochs=1"),
        "progress": False,
        "report": False,
    }


def without_training(options, common_settings, *overrides, method="frozen", **changes):
    """The same images for a method that trains nothing."""
    return options | {"overrides": (*common_settings, "model.image_size=8", *overrides), "method": method, **changes}


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def contents(folder):
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and file.name != ".lock"]
    return {file.name: file.read_bytes() for file in files}


def named_with_a_warning(run, labels):
    with pytest.warns(PromptCALWarning, match="is not finished"):
        return name(run=run, labels=labels)


def test_the_first_result_is_usable_while_training_runs_and_is_replaced(
    tmp_path, options, common_settings, interrupted_at, outcome
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_result, "write_report", lambda *given: pytest.fail("no report was asked for"))
        fit(**options, output=tmp_path / "undisturbed")
    interrupted_at(1)
    with pytest.raises(Interrupted, match="--resume to continue, or keep the first result, which `promptcal name`"):
        fit(**options | {"report": True}, output=tmp_path / "run")

    assert RunDirectory(tmp_path / "run").info().status == "training"
    assert "training is not finished" in (tmp_path / "run" / "report.html").read_text()
    alone = fit(**without_training(options, common_settings, output=tmp_path / "alone"))
    for file in ("assignments.csv", "embeddings.npy", "model.safetensors", "centroids.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
    first = results_of(tmp_path / "run")
    assert first["selected"] == first["baselines"]["semi_supervised_kmeans"] == results_of(alone.path)["selected"]

    message = "training of .* is not finished, so this is its first result, of the frozen backbone"
    with pytest.warns(PromptCALWarning, match=message):
        found = predict(run=tmp_path / "run", images=options["images"][:6], progress=False)
    assert found.clusters.tolist() == predict(run=alone, images=options["images"][:6], progress=False).clusters.tolist()
    with pytest.warns(PromptCALWarning, match="is not finished"):
        assert evaluate(run=tmp_path / "run", truth=options["truth"]).all == pytest.approx(first["selected"]["all"])
    with pytest.warns(PromptCALWarning, match="is not finished"):
        export(run=tmp_path / "run", to="csv", output=tmp_path / "exported.csv", progress=False)
    with pytest.warns(PromptCALWarning, match="is not finished"):
        make_report(run=tmp_path / "run", progress=False)

    written = contents(tmp_path / "run")
    found = alone.assignments()
    new = next(c for c, known in enumerate(found.known) if not known)
    owls = [path for path, cluster in zip(found.paths, found.clusters, strict=True) if cluster == new]
    named = named_with_a_warning(tmp_path / "run", dict.fromkeys(owls, "owl"))
    assert (named.renamed, named.notes[0][:24]) == ({found.names[new]: "owl"}, "training is not finished")
    name(run=tmp_path / "run", undo=True)
    assert contents(tmp_path / "run") == written
    named_with_a_warning(tmp_path / "run", dict.fromkeys(owls, "owl"))
    with pytest.warns(PromptCALWarning, match="is not finished"):
        export(run=tmp_path / "run", to="csv", output=tmp_path / "named.csv", progress=False)
    assert (tmp_path / "named.csv").read_text().count(",owl,known,") == len(owls)
    with pytest.raises(RunError, match="other images or labels"):
        fit(**options | {"labels": None}, output=tmp_path / "run", resume=True)
    assert "owl" in (tmp_path / "run" / "assignments.csv").read_text()

    with pytest.warns(PromptCALWarning, match="names that were applied to the first result of .* are dropped"):
        fit(**options, output=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="nothing to undo"):
        name(run=tmp_path / "run", undo=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")
    results, expected = results_of(tmp_path / "run"), results_of(tmp_path / "undisturbed")
    times = {"seconds": 0, "phases": {}}
    assert results | times == expected | times
    assert not (tmp_path / "run" / "report.html").exists()  # that of the first result


def test_no_result_while_the_first_one_is_being_replaced(tmp_path, options, monkeypatch, outcome):
    fit(**options, output=tmp_path / "undisturbed")
    write, written = finalize.write_contact_sheets, []

    def fail_the_second_time(*given):
        written.append(given)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        write(*given)

    monkeypatch.setattr(finalize, "write_contact_sheets", fail_the_second_time)
    with pytest.raises(RunError, match="No space left"):
        fit(**options, output=tmp_path / "run")
    with pytest.raises(RunError, match="not finished; run its fit again with --resume"):
        Run(tmp_path / "run")
    fit(**options, output=tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")


def test_the_first_result_is_kept_if_training_did_not_help(tmp_path, options, common_settings, monkeypatch):
    stabilities = iter([0.9, 0.1])
    monkeypatch.setattr(comparison, "measure", lambda *given, **named: measured(2, 2, next(stabilities)))
    overrides = (*(o for o in options["overrides"] if "keep" not in o), HEAD)
    run = fit(**options | {"overrides": overrides}, output=tmp_path / "run")
    assert (run.info.status, run.info.is_frozen, run.config.method) == ("finished", True, "promptcal")
    alone = fit(**without_training(options, common_settings, HEAD, output=tmp_path / "alone"))
    assert (run.path / "assignments.csv").read_bytes() == (alone.path / "assignments.csv").read_bytes()
    results = run.directory.results()
    assert results.comparison.kept == "first"
    assert results.categories == alone.directory.results().categories
    assert (results.comparison.first.stability, results.comparison.trained.stability) == (0.9, 0.1)
    assert results.selected == results.baselines["frozen"]
    assert list(results.stages) == ["warmup", "affinity"]
    assert results.stages["affinity"].accuracy is not None  # of training
    assert "not finished" not in make_report(run=run, progress=False).path.read_text()
    ahead = fit(
        **options | {"n_classes": None, "overrides": ("affinity.epochs=0", "warmup.epochs=0")},
        start_from=run.path, output=tmp_path / "next",
    )  # fmt: skip
    assert ahead.method.name == "promptcal"


def test_results_are_compared_with_the_numbers_of_categories_that_they_have(
    tmp_path, options, monkeypatch, interrupted_at
):
    """Also if the run is resumed after the first result; the setting is the largest number that was tried."""
    compared, measure = [], comparison.measure

    def recorded(features, task, *given, **named):
        compared.append((task.method.name, task.config.n_classes))
        return measure(features, task, *given, **named)

    monkeypatch.setattr(comparison, "measure", recorded)
    monkeypatch.setattr(
        finalize, "agreed_number", lambda task, *given: {"frozen": 3, "promptcal": 4}.get(task.method.name)
    )
    settings = options | {"n_classes": 5, "overrides": (*options["overrides"], HEAD)}
    run = fit(**settings, output=tmp_path / "run")
    assert (len(run.names), run.config.n_classes) == (4, 5)
    interrupted_at(1)
    with pytest.raises(Interrupted):
        fit(**settings, output=tmp_path / "resumed")
    assert len(Run(tmp_path / "resumed", warn_if_unfinished=False).names) == 3
    fit(**settings, output=tmp_path / "resumed", resume=True)
    assert compared == 2 * [("frozen", 3), ("promptcal", 4)]
    results, resumed = (RunDirectory(tmp_path / name).results() for name in ("run", "resumed"))
    assert results.comparison.trained == resumed.comparison.trained


def test_a_method_that_trains_nothing_has_one_result(tmp_path, options, common_settings):
    run = fit(**without_training(options, common_settings, output=tmp_path / "run", method="kmeans"))
    assert run.directory.results().comparison is None
    assert not run.info.is_frozen


def test_images_are_embedded_by_the_frozen_backbone_once(tmp_path, options, monkeypatch):
    titles = []
    embed = scoring.embed_all

    def counted(network, view, n_images, title, session):
        titles.append(title)
        return embed(network, view, n_images, title, session)

    for module in (prepare, scoring, finalize):
        monkeypatch.setattr(module, "embed_all", counted)
    settings = (*options["overrides"], "estimation.n_init=2", "estimation.max_classes=4")
    fit(**options | {"n_classes": "auto", "overrides": settings}, output=tmp_path / "run")
    assert titles == ["embedding", "warmup features", "embedding"]  # estimate, stage 1, result


def test_a_long_training_on_a_cpu_needs_consent(tmp_path, options, monkeypatch):
    monkeypatch.setattr(time_limit, "LONG_SECONDS", 0)
    with pytest.raises(ConfigError, match=r"would take about .* on this CPU \(the first result is kept\); use"):
        fit(**options, output=tmp_path / "run")
    assert RunDirectory(tmp_path / "run").info().status == "training"
    assert fit(**options, output=tmp_path / "run", resume=True, allow_long=True).info.status == "finished"


def test_without_consent_to_a_long_training_the_first_result_is_the_result(tmp_path, options, monkeypatch):
    monkeypatch.setattr(time_limit, "LONG_SECONDS", 0)
    questions = []
    decline = {"confirm": lambda text: bool(questions.append(text))}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PromptCALWarning)  # reading a finished run does not warn
        run = fit(**options | {"report": True}, output=tmp_path / "run", **decline)
        scored = evaluate(run=run, truth=options["truth"])
        found = run.assignments()
        new = next(c for c, known in enumerate(found.known) if not known)
        owls = [path for path, cluster in zip(found.paths, found.clusters, strict=True) if cluster == new]
        assert name(run=run, labels=dict.fromkeys(owls, "owl")).renamed == {"new-1": "owl"}
    assert len(questions) == 1
    assert questions[0].startswith("Train for about ")
    run = Run(run.path)
    assert (run.info.status, run.info.is_frozen) == ("finished", True)
    sentence = "Nothing was trained, so the result is the first one. To train later, run the same command with"
    assert sentence in html.unescape(run._repr_html_())
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert f'"comparison":"{sentence}' in page
    assert "training is not finished" not in page
    result = accuracy_rows(run.directory.results(), METHODS["promptcal"], run.directory.results().selected)[-1]
    assert result.scores.all == pytest.approx(scored.all)
    with pytest.raises(ConfigError, match="would take about"):  # there is no first result to end with
        fit(**options, output=tmp_path / "other", first_result=False, **decline)


def test_stability_is_the_agreement_of_clusterings():
    generator = np.random.default_rng(0)
    centres = np.eye(4, 8) * 5
    clear = torch.tensor(centres.repeat(30, axis=0) + generator.normal(size=(120, 8)) / 20, dtype=torch.float32)
    noise = torch.tensor(generator.normal(size=(120, 8)), dtype=torch.float32)
    labels = np.where(np.arange(120) % 10 == 0, np.arange(120) // 30, -1)
    labels[60:] = -1
    measure = {"n_init": 3, "max_images": 1000, "seed": 1}
    assert stability(clear, labels, 4, **measure) == 1.0
    unstable = stability(noise, labels, 4, **measure)
    chance = adjusted_rand_score(generator.integers(0, 4, 5000), generator.integers(0, 4, 5000))
    assert chance + 0.05 < unstable < 0.8
    assert unstable == stability(noise, labels, 4, **measure)


def measured(n_right, n_held_out, stability):
    right = np.arange(n_held_out) < n_right
    share = n_right / n_held_out if n_held_out else None
    return Measured(ResultQuality(held_out=share, n_held_out=n_held_out, stability=stability), right)


@pytest.mark.parametrize(
    ("first", "trained", "is_trained"),
    [
        ((4, 4, 0.70), (3, 4, 0.80), True),  # one label of four proves little
        ((90, 100, 0.70), (70, 100, 0.80), False),
        ((0, 0, 0.80), (0, 0, 0.70), False),
        ((4, 8, 0.80), (4, 8, 0.80), True),
        ((4, 8, None), (5, 8, None), True),  # without stability: a continued run
        ((4, 8, None), (4, 8, None), False),
        ((0, 0, None), (0, 0, None), False),
    ],
)
def test_which_result_is_preferred(first, trained, is_trained):
    assert is_preferred(measured(*trained), measured(*first), was_trained=False) == is_trained


@pytest.mark.parametrize(("gained", "is_trained"), [(1, False), (4, False), (5, True)])
def test_more_training_of_a_trained_network_must_be_clearly_better(gained, is_trained):
    """Five labels gained and none lost are two standard errors (McNemar's test); four are fewer."""
    first, trained = measured(10, 20, None), measured(10 + gained, 20, None)
    assert is_preferred(trained, first, was_trained=True) == is_trained
    as_many_lost = first._replace(right=np.arange(20) >= 10 - gained)
    assert not is_preferred(trained, as_many_lost, was_trained=True)


@pytest.mark.parametrize(
    ("first", "trained", "preferred", "kept", "start", "parts"),
    [
        ((0.5, 8, None), (0.5, 8, None), "first", "first", "Training did not help", ["4 of 8 after", "--keep trained"]),
        ((None, 0, None), (None, 0, None), "first", "first", "Nothing shows whether", ["no label", "--keep trained"]),
        ((None, 0, None), (None, 0, None), "first", "trained", "The result is that of training; no label", []),
        ((0.9, 10, 0.8), (0.5, 10, 0.7), "first", "trained", "The result is that of training, although", ["0.70"]),
        ((0.5, 8, None), (0.75, 8, None), "trained", "trained", "The result is that of training. By this", ["6 of 8"]),
        ((None, 0, 0.7), (None, 0, 0.7), "trained", "trained", "The result is that of training. By", ["not worse"]),
        ((1.0, 4, 0.7), (0.75, 4, 0.8), "trained", "trained", "The result is that of training. By the", ["3 of 4"]),
    ],
)
def test_a_sentence_says_which_result_was_kept_and_why(first, trained, preferred, kept, start, parts):
    before, after = (ResultQuality(held_out=h, n_held_out=n, stability=s) for h, n, s in (first, trained))
    text = Comparison(first=before, trained=after, preferred=preferred, kept=kept).description()
    assert text.startswith(start)
    assert all(part in text for part in parts)
    assert "()" not in text
    assert "at least as good" not in text


@pytest.fixture(scope="module")
def previous(tmp_path_factory, small_set, quick_settings):
    images, _, labels = small_set
    overrides = (*quick_settings, "model.image_size=8", "warmup.epochs=1", "affinity.epochs=1")
    labels = [None if label < 0 else f"class {label}" for label in labels]
    common = {"images": images, "progress": False, "report": False}
    output = tmp_path_factory.mktemp("previous") / "run"
    run = fit(labels=labels, n_classes=4, overrides=overrides, output=output, **common)
    found = run.assignments()
    new = next(i for i, known in enumerate(found.known) if not known)
    members = np.flatnonzero(found.clusters == new)
    named = {found.paths[i]: "owl" for i in members[: len(members) // 2 + 1]}
    return {**common, "labels": named, "start_from": run.path}


def test_a_continued_fit_begins_with_the_result_of_the_previous_weights(
    tmp_path, previous, interrupted_at, outcome, small_set
):
    truth = [f"class {label}" for label in small_set[1]]
    fit(**previous, truth=truth, output=tmp_path / "undisturbed")
    interrupted_at(1)
    with pytest.raises(Interrupted):
        fit(**previous, truth=truth, output=tmp_path / "run")
    assert RunDirectory(tmp_path / "run").info().status == "training"
    alone = fit(**previous, truth=truth, output=tmp_path / "alone", overrides=("affinity.epochs=0", "warmup.epochs=0"))
    for file in ("assignments.csv", "embeddings.npy", "model.safetensors", "centroids.safetensors", "changes.csv"):
        assert (tmp_path / "run" / file).read_bytes() == (alone.path / file).read_bytes()
    first = results_of(tmp_path / "run")
    assert (first["weights"], first["selected"]) == ("previous", results_of(alone.path)["selected"])
    with pytest.warns(PromptCALWarning, match="so this is its first result, of the weights of the previous run; let"):
        found = predict(run=tmp_path / "run", images=previous["images"][:6], progress=False)
    assert (
        found.clusters.tolist() == predict(run=alone, images=previous["images"][:6], progress=False).clusters.tolist()
    )
    fit(**previous, truth=truth, output=tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")


def test_a_continued_fit_says_before_it_trains_that_names_need_no_training(tmp_path, previous, monkeypatch):
    run = PreviousRun(previous["start_from"])
    found, named = run.assignments, previous["labels"]
    known = next(p for p, c, y in zip(found.paths, found.clusters, found.labelled, strict=True) if c < 2 and not y)
    monkeypatch.chdir(tmp_path)

    def said(labels, *settings, images=previous["images"]):
        """What is printed while the inputs are read; nothing is computed yet."""
        lines = [f"{path},{label}" for path, label in labels.items()]
        (tmp_path / "named.csv").write_text("\n".join(["path,label", *lines]))
        request = FitRequest(
            images=images, labels="named.csv", start_from=run.path, overrides=settings, output=tmp_path / "run"
        )
        console = Console(file=io.StringIO())
        read_inputs(request, RunDirectory(request.output), console)
        return console.file.getvalue()

    sentence = f"no image changes its category: `promptcal name {run.path} named.csv` gives the same names without"
    assert sentence in said(named)
    assert sentence in said({**named, known: found.categories[found.paths.index(known)]})
    for other in ({known: "owl"}, {known: "heron"}, {known: ""}):  # moved, moved to a new category, marked as wrong
        assert "gives the same names" not in said({**named, **other})
    assert "gives the same names" not in said(named, "affinity.epochs=0")  # nothing is trained
    more = np.concatenate([previous["images"], previous["images"][:1]])
    assert "gives the same names" not in said(named, images=more)  # one is new


@pytest.mark.parametrize(("after_training", "kept"), [(11, "first"), (16, "trained")])
def test_a_continued_fit_keeps_training_only_if_clearly_more_held_out_labels_are_right(
    tmp_path, previous, small_set, monkeypatch, after_training, kept
):
    right = iter([10, after_training])
    monkeypatch.setattr(comparison, "measure", lambda *given, **named: measured(next(right), 20, None))
    truth = [f"class {label}" for label in small_set[1]]
    run = fit(**previous, truth=truth, output=tmp_path / "run")
    results = run.directory.results()
    result = accuracy_rows(results, METHODS["promptcal"], results.selected)[-1]
    assert result.title.endswith("weights of the previous run") == (kept == "first")
    assert result.scores.all == pytest.approx(evaluate(run=run, truth=truth).all)
    assert (results.comparison.kept, results.weights) == (kept, "previous" if kept == "first" else None)
    assert (run.method.name, run.info.is_frozen, run.info.status) == ("promptcal", False, "finished")
    before = Run(previous["start_from"]).stored_weights()
    is_same = all(torch.equal(before[key], weights) for key, weights in run.stored_weights().items())
    assert is_same == (kept == "first")
    sentence = results.comparison.description()
    assert sentence.startswith("Training did not help") == (kept == "first")
    assert html.escape(sentence) in run._repr_html_()
    page = make_report(run=run, progress=False).path.read_text(encoding="utf-8")
    assert f'"comparison":"{sentence}"' in page
    assert "owl" in run.names
    assert results.changes is not None
    written = run.directory.held_out()
    held_out = {*written.paths, *written.unused}
    if kept == "first":  # the next run may hold out every label that was not used in training
        assert held_out >= set(previous["labels"])
    else:
        assert 0 < len(held_out & set(previous["labels"])) < len(previous["labels"])
    monkeypatch.undo()
    again = fit(**previous | {"labels": None, "start_from": run.path}, output=tmp_path / "next", keep="trained")
    assert again.directory.results().comparison.kept == "trained"


def test_without_held_out_labels_the_stability_of_the_results_is_that_of_a_new_read_out(tmp_path, options, monkeypatch):
    seen = []
    measure = comparison.measure

    def watched(features, task, stabilities, session, *, by_readout):
        quality = measure(features, task, stabilities, session, by_readout=by_readout)
        seen.append((quality.quality, measure(features, task, None, session, by_readout=by_readout).quality))
        return quality

    monkeypatch.setattr(comparison, "measure", watched)
    more = ("clustering.readout=head", "selection.by=last", "selection.keep=trained")
    fit(**options | {"overrides": (*options["overrides"], *more)}, output=tmp_path / "run", keep=None)
    assert len(seen) == 2
    for given, found_again in seen:
        assert given == found_again
        assert given.n_held_out == 0
        assert 0 < given.stability <= 1


def test_the_held_out_labels_are_hidden_from_both_results(tmp_path, options, common_settings, quick_settings):
    """The labels are drawn at random, so no result can know those that are held out. In the previous run, each labelled
    image is in the category of its label: a result that began there would have all of them right."""
    generator = np.random.default_rng(0)
    chosen = set(generator.permutation(48)[:32].tolist())
    options |= {"labels": [f"class {generator.integers(2)}" if i in chosen else None for i in range(48)]}
    half = "data.validation_fraction=0.5"
    previous = fit(**without_training(options, common_settings, half, output=tmp_path / "previous"))
    settings = (*quick_settings, "model.image_size=8", "warmup.epochs=1", "affinity.epochs=1", half)
    again = options | {"labels": None, "start_from": previous.path, "method": "promptcal", "overrides": settings}
    found = fit(**again, output=tmp_path / "run").directory.results().comparison
    assert found.first.n_held_out == found.trained.n_held_out >= 14
    assert found.first.held_out < 0.8
    assert found.trained.held_out < 0.8


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("few_images", [8], indirect=True)
def test_a_continued_benchmark_keeps_training_only_with_evidence(tmp_path, quick_settings, monkeypatch):
    """A new benchmark keeps the result of training. Its preset keeps the last epoch, so no label is held out for it."""
    common = {"name": "mini", "progress": False, "report": False}
    short = (*quick_settings, "model.image_size=8", "warmup.epochs=1", "affinity.epochs=1")
    settings = [setting for setting in short if "keep" not in setting]
    run = benchmark(**common, output=tmp_path / "run", overrides=settings)
    assert (run.config.selection.by, run.config.selection.keep) == ("last", "trained")
    assert not run.directory.held_out().paths
    found = run.assignments()
    new = max(np.flatnonzero(~np.array(found.known)), key=lambda c: (found.clusters == c).sum())
    labels = {found.paths[i]: "frog" for i in np.flatnonzero(found.clusters == new)[:4]}
    common |= {"start_from": run.path}
    again = benchmark(**common, labels=labels, output=tmp_path / "again")
    assert (again.config.selection.by, again.config.selection.keep) == ("last", "better")
    held_out = again.directory.held_out()
    assert {*held_out.paths, *held_out.unused} & labels.keys()
    assert again.directory.results().comparison.first.n_held_out > 0
    trained = benchmark(**common, labels=labels, output=tmp_path / "trained", keep="trained")
    assert trained.directory.results().comparison.kept == "trained"
    alone = benchmark(**common, output=tmp_path / "alone")  # the previous training used every label
    comparison = alone.directory.results().comparison
    assert (comparison.kept, comparison.trained.n_held_out) == ("first", 0)
    assert comparison.description().startswith("Nothing shows whether training helped")


@pytest.mark.parametrize(("start_from", "keep"), [(None, "trained"), ("run", "better")])
def test_a_continued_run_of_the_published_protocol_is_protected_as_well(start_from, keep):
    request = FitRequest(images="photos", output="on", start_from=start_from, overrides=["protocol=published"])
    layers = settings_layers(request)
    assert resolve(replace(layers, given=(*layers.given, {"n_classes": 4}))).selection.keep == keep
