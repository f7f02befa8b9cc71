"""Fits on a sample: all labelled images or rows, a uniform and reproducible sample of the others, then everything."""

import csv
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from shard_helpers import BACKBONE, rows_of, write_parquet, write_tar

from promptcal import api
from promptcal.data import ImageSet, label_files
from promptcal.data.sources import TextSource
from promptcal.discovery import heads
from promptcal.errors import ConfigError, LabelError
from promptcal.metrics import discovery_accuracy
from promptcal.pipeline import clustering, sampled_inputs
from promptcal.pipeline.problem import Problem
from promptcal.pipeline.request import FitRequest
from promptcal.pipeline.sampled_inputs import DEFAULT_SAMPLE, with_default_sample
from promptcal.runtime import free_memory
from promptcal.shards import sampled as shards_sampled
from promptcal.shards.sampled import StreamSample
from promptcal.shards.shard_sources import Place

FIT = ("clustering.n_init=3",)


def sampled(names, n, seed, wanted=(), block=64):
    sample = StreamSample(n, seed)
    for first in range(0, len(names), block):
        part = names[first : first + block]
        sample.offer(part, [Place(name) for name in part], set(wanted).__contains__)
    return sample.chosen()


def test_a_sample_is_uniform_and_reproducible():
    names = [f"{i:04d}" for i in range(400)]
    counts = np.zeros(400)
    for seed in range(200):
        chosen, places = sampled(names, 100, seed)
        assert [place.location for place in places] == chosen == sorted(chosen)
        assert len(chosen) == 100
        counts[[int(name) for name in chosen]] += 1
    expected, variance = 50, 200 * 0.25 * 0.75
    statistic = ((counts - expected) ** 2).sum() / variance  # about chi-squared with 399 degrees of freedom
    assert 300 < statistic < 510
    assert sampled(names, 100, 3) == sampled(names, 100, 3, block=7)
    assert sampled(names, 100, 3) != sampled(names, 100, 4)


def test_wanted_names_are_always_in_the_sample():
    names = [str(i) for i in range(5000)]
    chosen, _ = sampled(names, 10, 0, wanted=["17", "4711"])
    assert len(chosen) == 12
    assert {"17", "4711"} <= set(chosen)


@pytest.fixture
def labels(tmp_path, pictures):
    """The class of every fourth image."""
    file = tmp_path / "labels.csv"
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([("id", "label"), *((n, f"class {int(n) // 20}") for n in list(pictures)[::4])])
    return file


def fit(images, labels, output, **options):
    return api.fit(
        images=images, labels=labels, output=output, n_classes=4, backbone=BACKBONE, quick=True, report=False,
        progress=False, overrides=FIT, **options,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["tars", "parquet"])
def test_fit_on_a_sample_then_predict_everything(tars, pictures, labels, tmp_path, kind):
    source = tars
    if kind == "parquet":
        source = tmp_path / "parquet"
        source.mkdir()
        write_parquet(source / "0.parquet", {"id": list(pictures), "image": list(pictures.values())})
    run = fit(source, labels, tmp_path / "run", sample=12)
    found = run.assignments()
    assert len(found) == 10 + 12
    assert set(list(pictures)[::4]) <= set(found.paths)
    assert found.labelled.sum() == 10
    if kind == "parquet":  # the same ids in the same order
        again = fit(tars, labels, tmp_path / "again", sample=12)
        assert again.assignments().paths == found.paths
        np.testing.assert_array_equal(again.embeddings(), run.embeddings())
    summary = api.predict_shards(run=run, source=source, output=tmp_path / "out", workers=1, progress=False)
    assert summary.manifest.rows == 40


def test_which_sources_are_always_sampled(tars, image_folder):
    def sample(images, **options):
        return with_default_sample(FitRequest(images=images, output="run", n_classes=4, **options)).sample

    for images in (tars, [str(tars / "0.tar")], "s3://bucket/*.tar", "list.txt"):
        assert sample(images) == DEFAULT_SAMPLE
        assert sample(images, sample=3) == 3
    for images in (image_folder, [image_folder / "a/000.png"], np.zeros((2, 4, 4), dtype=np.uint8)):
        assert sample(images) is None


def test_fit_on_a_sample_of_a_folder_equals_a_fit_of_those_images(image_folder, pictures, tmp_path):
    rows = [(f"{'a' if i < 20 else 'b'}/{name}.png", "x" if i < 20 else "y") for i, name in enumerate(pictures)]
    labels = dict(rows[::4])
    truth = tmp_path / "truth.csv"
    truth.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    run = fit(image_folder, labels, tmp_path / "run", sample=1000, truth=truth)
    whole = fit(image_folder, labels, tmp_path / "whole", truth=truth)
    assert run.assignments().paths == whole.assignments().paths
    assert run.info.folder == whole.info.folder
    assert run.info.command[2:4] == ["--sample", "1000"]
    np.testing.assert_array_equal(run.assignments().clusters, whole.assignments().clusters)
    part = fit(image_folder, labels, tmp_path / "part", sample=8, truth=truth)
    assert len(part.truth()) == 18
    assert None not in part.truth()


def test_class_folders_label_all_their_images(pictures, tmp_path):
    for i, (name, content) in enumerate(pictures.items()):
        file = tmp_path / "photos" / ("cat" if i < 6 else "dog" if i < 12 else "unlabelled") / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    run = fit(tmp_path / "photos", None, tmp_path / "run", sample=8)
    assert run.assignments().labelled.sum() == 12
    assert len(run.assignments()) == 20
    assert run.info.known_classes == ["cat", "dog"]


def test_a_label_without_its_image_is_an_error(tars, tmp_path):
    with pytest.raises(LabelError, match="there is a label for nobody"):
        fit(tars, {"000": "a", "021": "b", "nobody": "a"}, tmp_path / "run", sample=12)
    with pytest.raises(ConfigError, match="--sample must be 1 to 1,000,000,000"):
        fit(tars, {"000": "a"}, tmp_path / "run", sample=0)
    with pytest.raises(LabelError, match="labels of a sample name their images"):
        fit(tars, ["a", None], tmp_path / "run", sample=12)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """3,000 rows around 6 directions in 5 shards, labels of a third of three of them, and the truth."""
    folder = tmp_path_factory.mktemp("mixture")
    generator = np.random.default_rng(0)
    truth = generator.integers(6, size=3000)
    rows = 3 * generator.normal(size=(6, 16))[truth] + generator.normal(size=(3000, 16))
    ids = [f"row-{i}" for i in range(3000)]
    (folder / "shards").mkdir()
    for i in range(5):
        part = slice(600 * i, 600 * i + 600)
        values = pa.array(rows[part].astype(np.float16).reshape(-1))
        columns = {"id": ids[part], "embedding": pa.FixedSizeListArray.from_arrays(values, 16)}
        write_parquet(folder / "shards" / f"{i}.parquet", columns)
    labels = {ids[i]: f"class {truth[i]}" for i in range(0, 3000, 3) if truth[i] < 3}
    np.save(folder / "rows.npy", rows.astype(np.float16))
    return folder, ids, truth, labels


def test_cluster_of_shards(mixture, tmp_path):
    folder, ids, truth, labels = mixture
    named = {name: f"class {number}" for name, number in zip(ids, truth, strict=True)}
    run = api.cluster(
        features=folder / "shards", labels=labels, truth=named, n_classes=6, sample=300, output=tmp_path / "run",
        overrides=FIT, progress=False, report=False,
    )  # fmt: skip
    n_unlabelled = (~run.assignments().labelled).sum()
    assert run.assignments().labelled.sum() == len(labels)
    assert 260 < n_unlabelled < 340
    table = rows_of(tmp_path / "run" / "assignments")
    found = dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))
    assert set(found) == set(ids)
    assert all(found[name] == label for name, label in labels.items())
    whole = api.cluster(
        features=folder / "rows.npy", ids=ids, labels=labels, n_classes=6, output=tmp_path / "whole", overrides=FIT,
        progress=False, report=False,
    )  # fmt: skip
    scored = [name for name in ids if name not in labels]
    true = [named[name] for name in scored]
    of_whole = dict(zip(whole.assignments().paths, whole.assignments().categories, strict=True))
    known = sorted(set(labels.values()))
    numbers = {name: i for i, name in enumerate(run.names)}
    sample, everything = (
        discovery_accuracy(true, np.array([numbers[by_name[name]] for name in scored]), known).all
        for by_name in (found, of_whole)
    )
    assert everything > 0.95
    assert sample > everything - 0.01


def test_an_unlabelled_row_of_a_sample_stands_for_many(mixture, monkeypatch, tmp_path):
    """The read-out knows how many rows of the source an unlabelled one stands for."""
    folder, _, _, labels = mixture
    given = []

    def train_heads(*words, **options):
        given.append(options["unlabelled_weight"])
        return heads.train_heads(*words, **options)

    monkeypatch.setattr(clustering, "train_heads", train_heads)
    options = {"labels": labels, "n_classes": 6, "overrides": FIT, "progress": False, "report": False}
    run = api.cluster(features=folder / "shards", sample=300, output=tmp_path / "run", **options)
    n = (~run.assignments().labelled).sum()
    assert given == pytest.approx([(3000 - len(labels)) / n])
    given.clear()
    api.cluster(features=folder / "shards", sample=3000, output=tmp_path / "whole", **options)
    assert given == [1.0]


def test_counts_of_a_sample_are_those_of_its_source():
    """The number of classes is estimated from them. Images that cannot be read do not change them."""
    images = ImageSet(["a", "b", "c", "d"], TextSource(["a", "b", "c", "d"]), n_source=102)
    problem = Problem.of(images, ["x", None, "y", None])
    assert problem.counts == (2, 100)
    assert problem.unlabelled_weight == 50
    assert problem.kept([0, 1, 2]).unlabelled_weight == 100


def test_labels_of_shards_stay_when_predict_continues(mixture, tmp_path):
    """An interrupted assignment is continued by `predict` with the same columns."""
    folder, _, _, labels = mixture
    wrong = {**labels, **dict.fromkeys(list(labels)[:5], "class 0")}
    run = api.cluster(
        features=folder / "shards", labels=wrong, n_classes=6, sample=300, output=tmp_path / "run", overrides=FIT,
        progress=False, report=False,
    )  # fmt: skip
    before = rows_of(tmp_path / "run" / "assignments")
    next((tmp_path / "run" / "assignments" / "entries").glob("2-*.json")).unlink()
    output = tmp_path / "run" / "assignments"
    again = api.predict_shards(run=run, source=folder / "shards", output=output, workers=1, progress=False)
    assert (again.skipped, again.rows) == (4, 600)
    assert rows_of(output).equals(before)
    rows = dict(zip(before["id"].to_pylist(), before["name"].to_pylist(), strict=True))
    assert [rows[name] for name in wrong] == list(wrong.values())


def test_shards_of_other_widths_are_refused(promptcal, tmp_path):
    words = ("cluster", tmp_path / "mixed", "--n-classes", "2", "--output", tmp_path / "run", "--quiet")
    (tmp_path / "mixed").mkdir()
    for width in (4, 5):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(3 * width, dtype=np.float16)), width)
        columns = {"id": [f"{width}-{i}" for i in range(3)], "embedding": lists}
        write_parquet(tmp_path / "mixed" / f"{width}.parquet", columns)
    code, _, said = promptcal(*words)
    assert code == 2
    assert "have embeddings of different lengths; give those of one model" in " ".join(said.split())
    write_parquet(tmp_path / "mixed" / "4.parquet", {"id": ["a"], "number": [1.0]})
    code, _, said = promptcal(*words)
    assert code == 2
    assert "needs the columns id and embedding (a fixed-size list of numbers); it has id, number" in " ".join(
        said.split()
    )


def write_labels(file, rows):
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([("id", "label"), *rows])
    return file


def test_rows_without_a_label_name_no_image_of_a_sample(tars, pictures, tmp_path):
    """A file may list the whole source; only its labels are taken."""
    rows = [(n, f"class {int(n) // 20}" if int(n) % 4 == 0 else "") for n in pictures]
    run = fit(tars, write_labels(tmp_path / "labels.csv", rows), tmp_path / "run", sample=12)
    assert len(run.assignments()) == 10 + 12
    assert run.assignments().labelled.sum() == 10


def test_rows_without_a_label_of_shards(mixture, tmp_path):
    folder, ids, _, labels = mixture
    file = write_labels(tmp_path / "labels.csv", [(name, labels.get(name, "")) for name in ids])
    options = {"n_classes": 6, "sample": 300, "overrides": FIT, "progress": False, "report": False}
    run = api.cluster(features=folder / "shards", labels=file, output=tmp_path / "run", **options)
    assert run.assignments().labelled.sum() == len(labels)
    assert 260 < (~run.assignments().labelled).sum() < 340


def test_an_image_that_is_marked_as_wrong_stays_in_the_sample(tars, pictures, labels, tmp_path):
    run = fit(tars, labels, tmp_path / "run", sample=12)
    marked = next(p for p, known in zip(run.assignments().paths, run.assignments().labelled, strict=True) if not known)
    rows = [(n, f"class {int(n) // 20}") for n in list(pictures)[::4]]
    changed = write_labels(tmp_path / "changed.csv", [*rows, *((n, "") for n in pictures if int(n) % 4)])
    again = api.fit(
        images=tars, labels=changed, start_from=run.path, sample=2, output=tmp_path / "again", report=False,
        progress=False,
    )  # fmt: skip
    assert set(run.assignments().paths) <= set(again.assignments().paths)
    assert marked in again.assignments().paths
    assert len(again.assignments()) == 10 + 12 + 2


def test_labels_of_a_sample_are_matched_exactly(image_folder, pictures, tmp_path):
    """An image of a similar name may be the only one that was drawn."""
    (image_folder / "b" / "000.png").write_bytes(pictures["039"])
    labels = {"a/001.png": "x", "b/021.png": "y"}
    for name in ("000.png", "021.png"):
        with pytest.raises(LabelError, match=f"a label for {name}.* labels need the exact paths of the source, as in"):
            fit(image_folder, {**labels, name: "x"}, tmp_path / "run", sample=1000)
    run = fit(image_folder, {**labels, "./a//000.png": "x"}, tmp_path / "run", sample=3)
    assert run.assignments().labelled.sum() == 3


def test_accents_may_be_stored_in_two_ways(pictures, tmp_path):
    """Some systems store them decomposed."""
    names = [unicodedata.normalize("NFD", f"é-{name}") for name in pictures]
    write_tar(tmp_path / "0.tar", dict(zip(names, pictures.values(), strict=True)))
    composed = [unicodedata.normalize("NFC", name) for name in names]
    labels = {composed[0]: "x", composed[21]: "y"}
    run = fit(tmp_path / "0.tar", labels, tmp_path / "run", sample=4, truth=dict.fromkeys(composed, "x"))
    assert run.assignments().labelled.sum() == 2
    assert None not in run.truth()


@pytest.mark.parametrize("command", ["fit", "cluster"])
def test_settings_are_checked_before_a_source_is_read(tars, mixture, promptcal, tmp_path, monkeypatch, command):
    def fail(*words, **options):
        raise AssertionError("the source was read")

    monkeypatch.setattr(sampled_inputs, "expand", fail)
    source = tars if command == "fit" else mixture[0] / "shards"
    words = (command, source, "--n-classes", "4", "--output", tmp_path / "run", "--quiet")
    for wrong, message in (
        (("--seed", "-1"), "the setting 'seed' is wrong"),
        (("--set", "clustering.n_initt=3"), "has no setting 'clustering.n_initt'"),
        (("--sample", "0"), "--sample must be 1 to 1,000,000,000, not 0"),
    ):
        code, _, said = promptcal(*words, *wrong)
        assert code == 2
        assert message in " ".join(said.split())


def test_the_seed_of_a_sample_is_that_of_the_settings(tars, mixture, labels, tmp_path):
    options = {"images": tars, "labels": labels, "n_classes": 4, "backbone": BACKBONE, "quick": True, "sample": 12}
    options |= {"report": False, "progress": False}
    default = api.fit(**options, output=tmp_path / "0", overrides=FIT).assignments().paths
    seeded = api.fit(**options, output=tmp_path / "1", overrides=FIT, seed=5).assignments().paths
    override = api.fit(**options, output=tmp_path / "2", overrides=(*FIT, "seed=5")).assignments().paths
    assert default != seeded == override
    options = {"features": mixture[0] / "shards", "labels": mixture[3], "n_classes": 6, "sample": 300}
    options |= {"report": False, "progress": False}
    seeded = api.cluster(**options, output=tmp_path / "3", overrides=FIT, seed=5).assignments().paths
    override = api.cluster(**options, output=tmp_path / "4", overrides=(*FIT, "seed=5")).assignments().paths
    assert seeded == override


def test_a_sample_that_does_not_fit_into_the_memory(mixture, tmp_path, monkeypatch):
    options = {"labels": mixture[3], "n_classes": 6, "overrides": FIT, "progress": False, "report": False}
    run = api.cluster(features=mixture[0] / "shards", sample=10**9, output=tmp_path / "all", **options)
    assert len(run.assignments()) == 3000
    monkeypatch.setattr(free_memory, "free_host_memory", lambda: 100_000.0)
    with pytest.raises(ConfigError, match="--sample 1000000000: this size needs at least .* lower it"):
        api.cluster(features=mixture[0] / "shards", sample=10**9, output=tmp_path / "run", **options)
    monkeypatch.setattr(shards_sampled, "_CHECKED_FROM", 1000)
    with pytest.raises(ConfigError, match="--sample 2000: "):
        sampled([str(i) for i in range(1200)], 2000, 0)


def test_the_limits_of_a_label_file_are_those_of_the_source(tars, pictures, tmp_path, monkeypatch):
    """Of the whole source, not of the sample that is taken of it."""
    monkeypatch.setattr(label_files, "MAX_ROWS", 10)
    monkeypatch.setattr(label_files, "_MAX_ROWS_PER_IMAGE", 2)
    rows = [(n, f"class {int(n) // 20}" if int(n) % 4 == 0 else "") for n in pictures]
    run = fit(tars, write_labels(tmp_path / "labels.csv", rows), tmp_path / "run", sample=2)
    assert len(run.assignments()) == 12
    with pytest.raises(LabelError, match="has over 80 rows for 40 images; give one row per image"):
        fit(tars, write_labels(tmp_path / "labels.csv", 3 * rows), tmp_path / "other", sample=2)
