"""`promptcal name`: names and merges without training."""

import csv
import json
import shutil

import numpy as np
import pytest

from promptcal.api import fit, name, predict
from promptcal.errors import LabelError, RunError
from promptcal.pipeline.apply_names import named_categories
from promptcal.run import Run, replacing
from promptcal.run.directory import RunDirectory


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, fit_apes_and_bees):
    """An untrained run of image files with two known classes and three discovered categories."""
    return fit_apes_and_bees(tmp_path_factory.mktemp("named") / "run")


@pytest.fixture
def run(fitted, tmp_path):
    """A copy to change."""
    return Run(shutil.copytree(fitted.path, tmp_path / "run"), "cpu")


def members(run, *clusters):
    found = run.assignments()
    return [p for p, c in zip(found.paths, found.clusters, strict=True) if c in clusters]


def contents(path):
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.name != ".lock"]
    return {file.name: file.read_bytes() for file in files}


def test_a_discovered_category_gets_its_name(run):
    before = run.assignments()
    found = name(run=run, labels=dict.fromkeys(members(run, 3), "goose"))
    assert (found.renamed, found.merged, found.moved, found.notes) == ({"new-2": "goose"}, {}, 0, [])
    now = Run(run.path, "cpu")
    assert now.names == ["ape", "bee", "new-1", "goose", "new-3"]
    assert now.known == [True, True, False, True, False]
    after = now.assignments()
    assert np.array_equal(after.clusters, before.clusters)
    assert [
        p for p, labelled in zip(after.paths, after.labelled, strict=True) if labelled and p not in before.paths
    ] == []
    assert set(members(now, 3)) <= {p for p, labelled in zip(after.paths, after.labelled, strict=True) if labelled}
    assert set(now.directory.held_out().unused) == set(members(now, 3))  # no training has used these labels
    assert now.info.former_names == ["new-2"]
    again = predict(run=now, images=now.info.folder, progress=False)
    assert "goose" in again.categories


@pytest.mark.parametrize("damage", ["run.json", "assignments.csv", "centroids.safetensors", "unfinished", "changed"])
def test_names_are_kept_if_what_the_fit_wrote_is_damaged(run, damage):
    name(run=run, labels=dict.fromkeys(members(run, 3), "goose"))
    folder, before = run.directory.original_folder, contents(run.path)
    if damage == "unfinished":
        (folder / "run.json").write_text(json.dumps({"format": 2, "status": "discarded"}))
    elif damage == "changed":
        (folder / "assignments.csv").write_text("path\n")
    else:
        (folder / damage).unlink()
    with pytest.raises(RunError, match="the names cannot be undone, .* damaged .*; the run stays as it is"):
        name(run=run, undo=True)
    assert contents(run.path) == before
    assert "goose" in Run(run.path, "cpu").names


def test_categories_with_one_name_are_merged_and_single_images_move(run):
    stray = members(run, 4)[0]
    labels = {**dict.fromkeys(members(run, 2, 3), "goose"), stray: "ape"}
    found = name(run=run, labels=labels)
    assert found.moved == 1
    assert sorted([*found.renamed, *found.merged]) == ["new-1", "new-2"]
    assert set(found.renamed.values()) == set(found.merged.values()) == {"goose"}
    now = Run(run.path, "cpu")
    assert sorted(now.names) == ["ape", "bee", "goose", "new-3"]
    table = dict(zip(now.assignments().paths, now.assignments().categories, strict=True))
    assert {p: table[p] for p in labels} == labels
    # what predict needs: the centroid of the merged category is the mean of its images
    clusters = now.assignments().clusters
    means = np.array([now.embeddings()[clusters == c].mean(axis=0) for c in range(4)])
    assert np.allclose(now.centroids.numpy(), means, atol=1e-5)
    predicted = predict(run=now, images=now.info.folder, progress=False)
    assert predicted.names == now.names


@pytest.mark.parametrize("readout", ["kmeans", "head"])
def test_a_name_that_no_category_has_becomes_a_category_of_its_images(run, fit_apes_and_bees, tmp_path, readout):
    """Also what its predictions use; images without this label stay where they are."""
    if readout == "head":
        run = fit_apes_and_bees(tmp_path / "head", "clustering.readout=head")
    before = contents(run.path)
    apes = [p for p, c, y in zip(*_columns(run.assignments()), strict=True) if c == "ape" and not y]
    labels = {**dict.fromkeys(apes[:3], "emu"), **dict.fromkeys(members(run, 2, 3), "goose")}
    old = dict(zip(run.assignments().paths, run.assignments().categories, strict=True))
    found = name(run=run, labels=labels)
    assert (found.added, found.moved, len(found.merged)) == ({"emu": 3}, 3, 1)
    now = Run(run.path, "cpu")
    assert sorted(now.names) == ["ape", "bee", "emu", "goose", "new-3"]
    assert now.known[now.names.index("emu")]
    table = dict(zip(now.assignments().paths, now.assignments().categories, strict=True))
    assert {p: table[p] for p in labels} == labels
    assert {p: c for p, c in table.items() if p not in labels} == {p: c for p, c in old.items() if p not in labels}
    predicted = predict(run=now, images=now.info.folder, progress=False, accept_all=True)
    again = dict(zip(predicted.paths, predicted.categories, strict=True))
    assert sum(again[path] == "emu" for path in apes[:3]) >= 2
    assert name(run=now, labels=labels).added == {}
    name(run=now, undo=True)
    assert contents(run.path) == before


def test_it_is_repeatable_and_can_be_undone(run):
    before = contents(run.path)
    labels = {**dict.fromkeys(members(run, 2, 3), "goose"), members(run, 4)[0]: None}
    name(run=run, labels=labels)
    once = contents(run.path)
    found = name(run=run.path, labels=labels)
    assert (found.renamed, found.merged, found.moved) == ({}, {}, 0)
    assert "1 images marked as wrong" in found.notes[0]
    assert contents(run.path) == once != before
    name(run=run.path, undo=True)
    assert contents(run.path) == before
    with pytest.raises(RunError, match="nothing to undo"):
        name(run=run.path, undo=True)


def test_a_killed_process_leaves_all_old_or_all_new_files(run, monkeypatch, tmp_path):
    labels = dict.fromkeys(members(run, 2, 3), "goose")
    complete = Run(shutil.copytree(run.path, tmp_path / "complete"), "cpu")
    name(run=complete, labels=labels)
    expected = contents(complete.path)
    write_with, calls = replacing.files.write_with, []

    def killed_at(n):
        def write(path, write, **options):
            if path.parent == run.path:
                calls.append(path.name)
                if len(calls) == n:
                    raise KeyboardInterrupt
            write_with(path, write, **options)

        return write

    for n in (1, 2, 5):
        with monkeypatch.context() as patch:
            patch.setattr(replacing.files, "write_with", killed_at(n))
            calls.clear()
            with pytest.raises(KeyboardInterrupt):
                name(run=run.path, labels=labels)
        assert sorted(Run(run.path, "cpu").names) == ["ape", "bee", "goose", "new-3"]
        assert contents(run.path) == expected
        name(run=run.path, undo=True)


def test_a_run_that_was_opened_before_it_was_named_is_not_mixed_with_the_new_one(run):
    """Its names would be those of other clusters."""
    opened = Run(run.path, "cpu")
    name(run=run.path, labels=dict.fromkeys(members(run, 2, 3), "goose"))
    for read in (opened.assignments, lambda: opened.centroids):
        with pytest.raises(RunError, match="was changed by another command after it was opened; open it again"):
            read()
    assert set(Run(run.path, "cpu").assignments().names) == {"ape", "bee", "goose", "new-3"}


def test_contradictions_are_errors_and_nothing_is_written(run):
    before = contents(run.path)
    first = members(run, 2)
    half = len(first) // 2
    cases = [
        ({**dict.fromkeys(first, "Ape")}, "'ape' and 'Ape' differ only in letter case"),
        ({p: ("ape" if i < half else "bee") for i, p in enumerate(first[: 2 * half])}, "labels of several categories"),
        ({"absent.png": "emu"}, "no such image"),
    ]
    for labels, message in cases:
        with pytest.raises(LabelError, match=message):
            name(run=run, labels=labels)
    assert contents(run.path) == before
    assert not RunDirectory(run.path).original_folder.exists()


def test_a_named_run_is_continued_with_its_names(run, tmp_path):
    name(run=run, labels=dict.fromkeys(members(run, 2, 3), "goose"))
    named = Run(run.path, "cpu")
    table = tmp_path / "more.csv"
    table.write_text(f"path,label\n{members(named, named.names.index('new-3'))[0]},heron\n")
    again = fit(
        images=named.info.folder,
        labels=table,
        start_from=run.path,
        output=tmp_path / "next",
        progress=False,
        report=False,
    )
    assert sorted(again.names) == ["ape", "bee", "goose", "heron"]
    assert [n for n in again.names if n in named.names] == [n for n in named.names if n in again.names]


def test_the_command_and_the_report(run, promptcal, tmp_path):
    lines = ["path,label", f"{members(run, 0)[-1]},emu", *(f"{p},goose" for p in members(run, 2, 3))]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    code, out, _ = promptcal("name", run.path, tmp_path / "labels.csv", "--quiet")
    assert code == 0
    assert "is now goose" in out
    assert "was merged into goose" in out
    assert "emu is a new category of 1 image\n" in out
    assert '"goose"' in (run.path / "report.html").read_text(encoding="utf-8")
    exported = tmp_path / "table.csv"
    assert promptcal("export", run.path, "--to", "csv", "--output", exported)[0] == 0
    with exported.open(newline="", encoding="utf-8") as file:
        named = {row["path"] for row in csv.DictReader(file) if row["name"] == "goose"}
    assert set(members(Run(run.path, "cpu"), Run(run.path, "cpu").names.index("goose"))) == named
    assert promptcal("name", run.path, "--undo", "--no-report")[0] == 0
    assert json.loads((run.path / "run.json").read_text())["categories"] == ["ape", "bee", "new-1", "new-2", "new-3"]
    code, _, err = promptcal("name", run.path)
    assert (code, "either labels to apply, or undo" in err) == (2, True)


def test_a_classifier_can_be_named_but_not_merged(fitted, common_settings, tmp_path):
    known = {p: c for p, c, y in zip(*_columns(fitted.assignments()), strict=True) if y}
    made = fit(
        images=fitted.info.folder, labels=known, n_classes=4, method="uno", progress=False, output=tmp_path / "run",
        overrides=[*common_settings, "model.image_size=32", "optim.epochs=0", "tensorboard=false"], report=False,
    )  # fmt: skip
    features = made.embed(made.info.folder, progress=False)[1]
    before = made.scores(features).scores
    largest = max((2, 3), key=lambda c: len(members(made, c)))
    name(run=made, labels=dict.fromkeys(members(made, largest)[:-1], "goose"))
    now = Run(made.path, "cpu")
    assert now.names[largest] == "goose"
    assert np.allclose(now.scores(features).scores, before)
    for labels in (dict.fromkeys(members(now, 2, 3), "goose"), {members(now, 0)[-1]: "heron"}):
        with pytest.raises(RunError, match="merges and added categories need training"):
            name(run=made.path, labels=labels)


def _columns(found):
    return found.paths, found.categories, found.labelled


def test_named_categories_by_hand():
    previous, classes = ["ape", "new-1", "new-2", "new-3"], ["ape", "owl"]
    shared = np.array([[5, 0, 0, 1], [0, 4, 6, 0]])  # owl names new-2, and new-1 is merged into it
    found = named_categories(previous, classes, shared, np.array([9, 5, 8, 9]))
    assert (found.targets.tolist(), found.kept.tolist()) == ([0, 1, 1, 2], [0, 2, 3])
    assert (found.numbers.tolist(), found.names) == ([0, 2, 1], ["ape", "new-3", "owl"])


def test_a_name_without_a_category_is_added_by_hand():
    """Most owls and most emus are in new-1, which only one of them can be; the heron has no category."""
    previous, classes = ["ape", "new-1", "new-2"], ["ape", "emu", "heron", "owl"]
    shared = np.array([[5, 0, 0], [0, 4, 3], [1, 0, 0], [0, 5, 0]])
    found = named_categories(previous, classes, shared, np.array([9, 20, 5]))
    assert (found.targets.tolist(), found.kept.tolist()) == ([0, 3, 1], [0, 2, -1, 1])
    assert (found.numbers.tolist(), found.names) == ([0, 2, 3, 1], ["ape", "owl", "emu", "heron"])
    assert not found.has_merges
