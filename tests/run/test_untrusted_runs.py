"""An untrusted run directory executes nothing, writes nothing outside itself, and is rejected in one sentence."""

import csv
import json
import math
import os
import pickle
import re
import shutil
import time

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from promptcal import api
from promptcal.data import embedded_set
from promptcal.errors import DataError, PromptCALError, RunError
from promptcal.exporters import onnx_model
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.run import Run, RunDirectory
from promptcal.run.stored_run import StoredRun
from promptcal.runtime import files
from promptcal.runtime.arrays import read_arrays
from promptcal.training.checkpoints import FORMAT as CHECKPOINT_FORMAT
from promptcal.training.checkpoints import Checkpoints, load_trained, random_states

RUNNABLE = "<img src=x onerror=window.stolen=1>"
ALL_SCORES = dict.fromkeys(("all", "known", "new", "separate_all", "separate_known", "separate_new"), 0.5)


class Trap:
    """Creates a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def intact(tmp_path_factory, small_set, common_settings):
    """A finished run without training, with its report."""
    root = tmp_path_factory.mktemp("intact")
    (root / "images").mkdir()
    pixels, _, labels = small_set
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(root / "images" / f"{i:02d}.png")
    (root / "images" / "broken.png").write_bytes(b"")
    given = {f"{i:02d}.png": f"class {y}" for i, y in enumerate(labels) if y >= 0}
    with pytest.warns(match="unreadable"):
        api.fit(
            images=root / "images", labels=given, n_classes=4, method="kmeans", output=root / "run",
            overrides=common_settings, skip_unreadable=True, progress=False,
            report=False,
        )  # fmt: skip
    record = {"stage": "warmup", "epoch": 1, "epochs": 1, "loss": 2.5}
    (root / "run" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    api.make_report(run=root / "run", progress=False)
    return root / "run"


@pytest.fixture
def run(intact, tmp_path):
    """A copy to tamper with, without checksums: they protect from accidents, not from attackers."""
    shutil.copytree(intact, tmp_path / "run")
    change(tmp_path / "run" / "run.json", sha256={})
    return tmp_path / "run"


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "executed"


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_run_that_names_very_many_categories_is_read_soon(run):
    names = [f"class {i}" for i in range(30_000)]
    change(run / "run.json", categories=names, known_classes=names)
    started = time.process_time()
    stored = StoredRun(run)
    assert time.process_time() - started < 2
    assert all(stored.known)


def test_skipped_images_are_put_back_at_their_positions(run):
    """Also very many of them, in a time that grows with their number only."""
    names = StoredRun(run).assignments().paths
    rows = [f"skipped-{i}.png,empty,{2 * i}" for i in range(len(names))]
    rows += [f"last-{i}.png,empty,{2 * len(names) + i}" for i in range(100_000)]
    (run / "skipped.csv").write_text("\n".join(["path,reason,position", *rows]) + "\n")
    started = time.process_time()
    images, assigned = StoredRun(run).given_images()
    assert time.process_time() - started < 5
    assert [images.names[i] for i in assigned] == names
    assert images.names[:3] == ["skipped-0.png", names[0], "skipped-1.png"]
    for rows in (["a.png,empty,5", "b.png,empty,4"], [f"a.png,empty,{len(names) + 1}"], ["a.png,empty,-1"]):
        (run / "skipped.csv").write_text("\n".join(["path,reason,position", *rows]) + "\n")
        with pytest.raises(RunError, match="is damaged .the position"):
            StoredRun(run).given_images()


# -- damaged and hostile files ------------------------------------------------------------------------------------

FILES = {  # each file of a run, and a command that reads it
    "run.json": "report", "config.yaml": "report", "assignments.csv": "report", "embeddings.npy": "report",
    "results.json": "report", "metrics.jsonl": "report", "calibration.json": "predict", "map.npz": "report",
    "attention.npz": "report", "thumbnails/index.json": "report", "thumbnails/examples.npz": "report",
    "model.safetensors": "predict", "centroids.safetensors": "predict", "held_out.json": "continue",
    "skipped.csv": "evaluate",
}  # fmt: skip
REMADE = {"map.npz", "attention.npz"}  # computed again if they are damaged


def contents(file, mark):
    whole = file.read_bytes()
    return {
        "pickle": pickle.dumps(Trap(mark)),
        "nothing": b"",
        "no text": b"\xff\xfe\x00\x81" * 20,
        "half": whole[: len(whole) // 2],
        "another kind": b"[1, [2]]" if file.suffix != ".csv" else b"a,b\n1,2\n",
        "deep": b"[" * 100_000,
    }


def use(command, run, tmp_path):
    if command == "report":
        api.make_report(run=run, output=tmp_path / "page.html", progress=False)
    elif command == "predict":
        api.predict(run=run, images=np.zeros((1, 32, 32, 3), np.uint8), progress=False)
    elif command == "evaluate":
        api.evaluate(run=run, truth={"00.png": "a", "01.png": "b"})
    else:
        PreviousRun(run).run.directory.held_out()


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_execute_nothing_and_are_rejected_in_one_sentence(run, mark, tmp_path, name):
    file = run / name
    assert file.is_file()
    for kind, content in contents(file, mark).items():
        if name in REMADE and kind not in ("pickle", "half"):
            continue  # each takes a while
        file.write_bytes(content)
        os.utime(file)
        if name in REMADE:
            use(FILES[name], run, tmp_path)
        else:
            try:
                use(FILES[name], run, tmp_path)
            except PromptCALError as error:
                assert str(file.name) in str(error) or str(run) in str(error), (kind, error)  # noqa: PT017
            else:
                assert (name, kind) == ("metrics.jsonl", "nothing")  # of no epochs
        assert not mark.exists()


def test_a_config_truncated_after_any_line_is_rejected(run):
    file = run / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    for n in range(len(lines)):
        file.write_text("".join(lines[:n]))
        with pytest.raises(RunError, match=r"config\.yaml cannot be read \(it was truncated: .*; fit again"):
            Run(run)


@pytest.mark.parametrize("method", ["os:system", "os.system", "promptcal.methods.gcd:GCD", "../gcd", "", "[gcd]", "7"])
def test_a_config_can_name_no_code_but_registered_methods(run, method):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("method: kmeans", f"method: {method}"))
    with pytest.raises(RunError, match=r"config\.yaml cannot be read \(.*method.*\); fit again with --overwrite"):
        Run(run)


@pytest.mark.parametrize("name", ["embeddings.npy", "map.npz", "attention.npz", "thumbnails/examples.npz"])
def test_arrays_of_objects_are_not_unpickled(run, mark, tmp_path, name):
    trap = np.array([Trap(mark)], dtype=object)
    if name.endswith(".npy"):
        np.save(run / name, trap, allow_pickle=True)
    else:
        np.savez(run / name, **dict.fromkeys(np.load(run / name), trap))
    os.utime(run / name)
    if name in REMADE:
        use("report", run, tmp_path)
    else:
        with pytest.raises(RunError, match="object|pickle"):
            use("report", run, tmp_path)
    assert not mark.exists()


def test_an_array_with_a_header_for_more_than_its_content_allocates_nothing(run, tmp_path):
    with (run / "embeddings.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**6)})
    with pytest.raises(RunError, match=r"embeddings\.npy cannot be read"):
        use("report", run, tmp_path)


def test_archives_that_unpack_to_too_much_are_rejected(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", zeros=np.zeros(10**7, np.uint8))
    assert (tmp_path / "a.npz").stat().st_size < 10**5
    assert read_arrays(tmp_path / "a.npz", "zeros")[0].shape == (10**7,)
    monkeypatch.setattr("promptcal.runtime.arrays.MAX_BYTES", 10**6)
    with pytest.raises(ValueError, match="it would unpack to"):
        read_arrays(tmp_path / "a.npz", "zeros")


def test_yaml_tags_aliases_and_nesting_in_the_config_of_a_run(run, mark):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    merged = "b0: &b0 {x: 1}\n" + "".join(
        f"b{i}: &b{i} {{<<: [{', '.join([f'*b{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
    )
    for text, named in (
        (f"seed: !!python/object/apply:os.mkdir ['{mark}']\n", "config.yaml cannot be read"),
        ("seed: !!python/name:os.system\n", "config.yaml cannot be read"),
        (bomb, "too many values"),
        (merged, "too many values"),
        ("seed: " + "[" * 50_000, "nested too deeply"),
    ):
        (run / "config.yaml").write_text(f"{text}\n...\n")
        with pytest.raises(RunError, match=named):
            Run(run)
    assert not mark.exists()


def test_weights_that_the_config_of_a_run_names_are_not_unpickled(run, mark, tmp_path):
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Trap(mark), protocol=2))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["weights"] = str(tmp_path / "evil.pth")
    (run / "config.yaml").write_text(yaml.safe_dump(config, explicit_end=True))
    (run / "attention.npz").unlink()
    use("report", run, tmp_path)
    assert "its weights cannot be loaded" in (tmp_path / "page.html").read_text()
    assert not mark.exists()


@pytest.mark.parametrize("backbone", ["hf-hub:someone/model", "hf_hub:someone/model", "local-dir:/tmp", "../evil"])
def test_the_config_of_a_run_cannot_download_a_backbone(run, backbone, tmp_path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["backbone"] = backbone
    (run / "config.yaml").write_text(yaml.safe_dump(config, explicit_end=True))
    with pytest.raises(PromptCALError, match="timm has no model called"):
        use("predict", run, tmp_path)


def test_a_hostile_checkpoint_is_not_unpickled(tmp_path, mark):
    checkpoints = Checkpoints(tmp_path)
    for content in (pickle.dumps(Trap(mark), protocol=2), pickle.dumps({"random": Trap(mark)})):
        checkpoints.last.write_bytes(content)
        with pytest.raises(RunError, match=r"last\.pt is damaged"):
            checkpoints.load_last()
    torch.save({"format": 1, "random": Trap(mark)}, checkpoints.last)
    with pytest.raises(RunError, match=r"last\.pt is damaged"):
        checkpoints.load_last()
    assert not mark.exists()


def test_centroids_of_another_shape_are_rejected(run, tmp_path):
    stored = load_file(run / "centroids.safetensors")
    centroids = stored["centroids"]
    for wrong in (centroids[:2], centroids[:, :5], centroids.flatten()):
        save_file({**stored, "centroids": wrong.contiguous()}, run / "centroids.safetensors")
        with pytest.raises(RunError, match=r"centroids\.safetensors does not fit its run"):
            use("predict", run, tmp_path)


def edit_tensors(run, name, **changes):
    tensors = load_file(run / name)
    for key, edit in changes.items():
        tensors[key] = edit(tensors[key]).contiguous()
    save_file(tensors, run / name)


def edit_weights(run, value):
    name = next(n for n, t in load_file(run / "model.safetensors").items() if t.is_floating_point())
    edit_tensors(
        run, "model.safetensors", **{name: lambda t: t.flatten().index_fill(0, torch.tensor(0), value).view_as(t)}
    )


def edit_embeddings(run, edit):
    np.save(run / "embeddings.npy", edit(np.load(run / "embeddings.npy")))


def edit_config(run, section, **values):
    config = yaml.safe_load((run / "config.yaml").read_text())
    config[section] |= values
    (run / "config.yaml").write_text(yaml.safe_dump(config, explicit_end=True))


def edit_column(run, column, value):
    with (run / "assignments.csv").open(newline="") as file:
        rows = [{**row, column: value} for row in csv.DictReader(file)]
    with (run / "assignments.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def edit_calibration(run, **values):
    change(run / "calibration.json", **values)


def with_value(array, value):
    array = array.copy()
    array[0, 0] = value
    return array


EDITS = {  # what is changed, and what the message says
    "weights nan": (lambda run: edit_weights(run, math.nan), "model.safetensors is damaged .*not finite"),
    "weights inf": (lambda run: edit_weights(run, -math.inf), "model.safetensors is damaged .*not finite"),
    "weights huge": (lambda run: edit_weights(run, 3e38), "embeddings that are not finite"),
    "centroids nan": (
        lambda run: edit_tensors(run, "centroids.safetensors", centroids=lambda t: t * math.nan),
        "centroids.safetensors is damaged .*not finite",
    ),
    "centroids int": (
        lambda run: edit_tensors(run, "centroids.safetensors", centroids=lambda t: t.long()),
        "centroids.safetensors does not fit its run",
    ),
    "centroids half": (
        lambda run: edit_tensors(run, "centroids.safetensors", centroids=lambda t: t.half()),
        "centroids.safetensors does not fit its run",
    ),
    "columns float": (
        lambda run: edit_tensors(run, "centroids.safetensors", columns=lambda t: t.float()),
        "centroids.safetensors does not fit its run",
    ),
    **{
        f"resize {size}": (lambda run, size=size: change(run / "run.json", resize=size), "run.json is damaged .*resize")
        for size in (0, 1, 7, 30_000, 100_000)
    },
    "train_blocks": (lambda run: edit_config(run, "model", train_blocks=99), "config.yaml is damaged .*train_blocks"),
    "temperature": (lambda run: edit_calibration(run, temperature=1e-320), "calibration.json is damaged"),
    "folder NUL": (lambda run: change(run / "run.json", folder="a\0b"), "run.json is damaged .*NUL"),
    "category NUL": (lambda run: change(run / "run.json", categories=["a\0", "b", "c", "d"]), "run.json is damaged"),
    "folder surrogate": (lambda run: change(run / "run.json", folder="a\ud800"), "run.json is damaged"),
    "category surrogate": (lambda run: change(run / "run.json", categories=["\udfff"]), "run.json is damaged"),
    "path NUL": (lambda run: rewrite_paths(run, ["a\0b.png"]), "assignments.csv is damaged .*NUL"),
    **{
        f"embeddings {value}": (
            lambda run, value=value: edit_embeddings(run, lambda e: with_value(e, value)),
            "embeddings.npy is damaged .*not finite",
        )
        for value in (math.nan, math.inf)
    },
    "embeddings without width": (lambda run: edit_embeddings(run, lambda e: e[:, :0]), "embeddings.npy has float32 of"),
    "embeddings half": (lambda run: edit_embeddings(run, lambda e: e.astype(np.float16)), "embeddings.npy has float16"),
}
READERS = {
    "predict": lambda run, place: use("predict", run, place),
    "report": lambda run, place: use("report", run, place),
    "estimate": lambda run, place: api.estimate_classes(
        run=run, images=run.parent / "images", labels={"00.png": "a", "02.png": "b"}, progress=False
    ),
    "folders": lambda run, place: api.export(run=run, to="folders", output=place / "out", progress=False),
    "embeddings": lambda run, place: api.export(run=run, to="embeddings", output=place / "e.parquet", progress=False),
    "continue": lambda run, place: PreviousRun(run),
}


@pytest.mark.parametrize("what", EDITS)
def test_edited_values_are_rejected_in_one_sentence_by_every_command_that_reads_them(run, tmp_path, small_set, what):
    (tmp_path / "images").mkdir()
    for i, image in enumerate(small_set[0][:8]):
        Image.fromarray(image).save(tmp_path / "images" / f"{i:02d}.png")
    edit, message = EDITS[what]
    edit(run)
    said = [refusal(read, run, tmp_path) for read in READERS.values()]
    assert any(re.search(message, text) for text in said), said


def refusal(read, run, place):
    """The sentence with which a command refuses a run; any other exception fails the test."""
    try:
        read(run, place)
    except PromptCALError as error:
        return str(error)
    return ""


LOSS = {"name": "a", "images": 0, "lost": 0, "into": {}, "kept": False}
CHANGES = {"previous_run": "", "images": 1, "moved": 0, "added": 0, "missing": 0, "confirmed_losses": [LOSS]}
CHANGES |= {name: [] for name in ("renamed", "removed_categories", "added_categories", "flows")}

READS = {  # what is changed, what reads it, and what the message says
    "embeddings": (
        lambda run: edit_embeddings(run, lambda e: e * 3e38),
        lambda run: Run(run).embeddings(),
        "embeddings.npy is damaged .*too large",
    ),
    **{
        f"{column} {value}": (
            lambda run, column=column, value=value: edit_column(run, column, value),
            lambda run: Run(run).assignments(),
            f"assignments.csv is damaged .*a {column} that is not a number from 0 to 1",
        )
        for column in ("confidence", "second_confidence", "stability")
        for value in ("-1", "7", "1e300", "nan", "-inf")
    },
    "a line without an end": (
        lambda run: os.truncate(run / "assignments.csv", 2**35),
        lambda run: Run(run).assignments(),
        "assignments.csv is damaged .*(NUL|too long)",
    ),
    "config": (lambda run: os.truncate(run / "config.yaml", 2**35), Run, "config.yaml cannot be read .*1 MB"),
    "run.json": (lambda run: os.truncate(run / "run.json", 2**35), Run, "run.json is damaged .*256 MB"),
    "records": (
        lambda run: os.truncate(run / "metrics.jsonl", 2**35),
        lambda run: Run(run).records(),
        "metrics.jsonl is damaged .*256 MB",
    ),
    **{
        f"repeats {name}": (
            lambda run, repeats=repeats: change(run / "results.json", selected=ALL_SCORES | {"repeats": repeats}),
            lambda run: RunDirectory(run).results(),
            "results.json is damaged .*repeats must score the same parts",
        )
        for name, repeats in {
            "of other parts": [ALL_SCORES, ALL_SCORES | {"new": None}],
            "of repeats": [ALL_SCORES, ALL_SCORES | {"repeats": [ALL_SCORES]}],
        }.items()
    },
    "a loss of nothing": (
        lambda run: change(run / "results.json", changes=CHANGES),
        lambda run: RunDirectory(run).results(),
        "results.json is damaged .*confirmed_losses.0.images",
    ),
}


@pytest.mark.parametrize("what", READS)
def test_values_and_sizes_are_checked_when_they_are_read(run, what):
    edit, read, message = READS[what]
    edit(run)
    with pytest.raises(RunError, match=message):
        read(run)


def test_damaged_centroids_are_not_replaced_by_names(run):
    edit_tensors(run, "centroids.safetensors", columns=lambda t: t * 0)
    before = (run / "centroids.safetensors").read_bytes()
    with pytest.raises(RunError, match="centroids.safetensors is damaged"):
        api.name(run=run, labels={"00.png": "class 0"})
    assert (run / "centroids.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["config.yaml", "assignments.csv", "held_out.json", "x"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_in_a_run_are_refused_before_anything_is_read(run, tmp_path, name, kind):
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    for read in READERS.values():
        assert f"{name} in the run is a pipe, a device or a link to one; remove it" in refusal(read, run, tmp_path)


def test_tensors_larger_than_the_free_memory_are_not_read(run, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_host_memory", lambda: 1000.0)
    with pytest.raises(RunError, match="it is larger than the free memory"):
        use("predict", run, tmp_path)


def test_an_onnx_file_of_weights_that_are_not_finite_is_not_written(run, tmp_path, monkeypatch):
    clusters = Run(run, "cpu").predict(embedded_set("test").images[:16], progress=False).clusters

    def all_nan(path, pixels):
        """Nothing but the clusters, first of one image, then of the others."""
        shapes = {"embedding": (192,), "scores": (4,), "probabilities": (4,)}
        values = {name: np.full((len(pixels), *shapes.get(name, ())), math.nan) for name in onnx_model.OUTPUTS}
        return values | {"cluster": clusters[:1] if len(pixels) == 1 else clusters[1:]}

    monkeypatch.setattr(onnx_model, "run_onnx", all_nan)
    with pytest.raises(RunError, match="differs from PyTorch by nan and in 0 clusters"):
        onnx_model._compare(Run(run, "cpu"), tmp_path / "a.onnx")
    edit_weights(run, math.nan)
    with pytest.raises(RunError, match="not finite"):
        api.export(run=run, to="onnx", output=tmp_path / "a.onnx", progress=False)
    assert not (tmp_path / "a.onnx").exists()


def test_text_that_only_looks_like_a_nul_is_kept(run):
    """A backslash and u0000 is six characters."""
    names = ["\\u0000", "b", "c", "d"]
    known = len(json.loads((run / "run.json").read_text())["known_classes"])
    change(run / "run.json", categories=names, known_classes=names[:known])
    assert Run(run).names == names


# -- links, names and text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["thumbnails", "figures", "sheets", "checkpoints", "tensorboard", "metrics.jsonl"])
def test_links_to_places_outside_a_run_are_rejected_before_anything_is_written(run, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside / "precious" if name == "metrics.jsonl" else outside
    if name == "metrics.jsonl":
        target.write_text("precious\n")
    before = {p: p.read_bytes() for p in outside.iterdir()}
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    with pytest.raises(RunError, match=f"{name} is a link to a place outside the run"):
        api.make_figure(name="tsne", run=run, progress=False)
    with pytest.raises(RunError, match=f"{name} is a link to a place outside the run"):
        api.make_report(run=run, progress=False)
    change(run / "run.json", status="running")
    with pytest.raises(RunError, match=f"{name} is a link to a place outside the run"):
        RunDirectory(run).check_free(resume=True, overwrite=False)
    assert {p: p.read_bytes() for p in outside.iterdir()} == before


@pytest.mark.parametrize("name", ["report.html", "map.npz", "attention.npz", "truth.csv", "evaluation.json"])
def test_a_link_is_replaced_and_its_target_kept(run, tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    if name in ("truth.csv", "evaluation.json"):
        use("evaluate", run, tmp_path)
    else:
        api.make_report(run=run, progress=False)
    assert precious.read_text() == "precious\n"
    assert not (run / name).is_symlink()


def rewrite_paths(run, paths):
    with (run / "assignments.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, path in zip(rows, paths, strict=False):
        row["path"] = path
    with (run / "assignments.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("path", ["../secret.png", "a/../../secret.png", "{outside}/secret.png"])
@pytest.mark.parametrize("form", ["folders", "huggingface", "fiftyone-json", "coco"])
def test_images_outside_the_image_folder_are_not_exported(run, tmp_path, intact, path, form):
    Image.new("RGB", (8, 8)).save(intact.parent / "secret.png")
    rewrite_paths(run, [path.format(outside=intact.parent)])
    with pytest.raises(RunError, match=r"secret\.png, which lies outside of its image folder"):
        api.export(run=run, to=form, output=tmp_path / "out", copy=form != "coco", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_an_image_is_not_exported(run, tmp_path):
    """A run of a list of files may name any path, but only images are exported."""
    (tmp_path / "key.png").write_text("secret")
    change(run / "run.json", root=None, folder="/")
    rewrite_paths(run, [str(tmp_path / "key.png")] * 48)
    with pytest.raises(DataError, match=r"key\.png is not an image"):
        api.export(run=run, to="folders", output=tmp_path / "out", copy=True, progress=False)
    assert not (tmp_path / "out").exists()


def test_category_names_cannot_leave_the_exported_folder(run, tmp_path):
    names = ["../../evil", "/absolute", "..", "a/b\\c\x01d"]
    info = json.loads((run / "run.json").read_text())
    change(run / "run.json", categories=names, known_classes=names[: len(info["known_classes"])])
    before = set(tmp_path.rglob("*"))
    api.export(run=run, to="folders", output=tmp_path / "out", progress=False)
    made = set(tmp_path.rglob("*")) - before
    assert made
    assert all(path.is_relative_to(tmp_path / "out") for path in made)
    assert len([path for path in (tmp_path / "out").iterdir() if path.is_dir()]) == 4


def test_text_of_a_run_is_escaped_in_its_report(run, tmp_path):
    info = json.loads((run / "run.json").read_text())
    names = [f"{RUNNABLE}{i}" for i in range(4)]
    change(run / "run.json", categories=names, known_classes=names[: len(info["known_classes"])], root=RUNNABLE)
    (run / "metrics.jsonl").write_text(json.dumps({"stage": f"{RUNNABLE}stage", "epoch": 1, "loss": 1.5}) + "\n")
    baselines = json.loads((run / "results.json").read_text())["baselines"]
    change(run / "results.json", baselines={f"</script>{RUNNABLE}baseline": ALL_SCORES, **baselines})
    with np.load(run / "attention.npz") as stored:
        steps, maps = stored["steps"], stored["maps"]
    np.savez(run / "attention.npz", steps=np.array([f"{RUNNABLE}step"] * len(steps)), maps=maps)
    rewrite_paths(run, [f"{RUNNABLE}path.png"])
    use("report", run, tmp_path)
    page = (tmp_path / "page.html").read_text()
    assert "<img" not in re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    for what in ("stage", "baseline", "step", "path.png", "0"):
        assert f"onerror=window.stolen=1\\u003e{what}" in page  # it is there, as text
    assert RUNNABLE not in page


def test_the_cache_folder_of_a_previous_run_is_not_used(run, tmp_path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["cache"] = str(tmp_path / "elsewhere")
    (run / "config.yaml").write_text(yaml.safe_dump(config, explicit_end=True))
    assert Run(run).config.data.cache == str(tmp_path / "elsewhere")
    assert "cache" not in PreviousRun(run).settings("kmeans")["data"]


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "has no format number, so it is damaged or not written by promptcal"),
        ("absent", "has no format number"),
        (0, "an invalid format number '0'"),
        (-3, "an invalid format number '-3'"),
        (True, "an invalid format number 'True'"),
        ("2", "an invalid format number '2'"),
        (2.0, r"an invalid format number '2\.0'"),
        ([], "an invalid format number"),
        (1, r"has format 1 \(written by promptcal .+\) and promptcal .+ reads 2 and later"),
        (3, r"has format 3 \(written by promptcal .+\) and promptcal .+ reads up to 2; upgrade promptcal"),
        (10**30, "upgrade promptcal"),
    ],
)
def test_a_run_of_another_format_is_rejected_with_a_remedy(run, found, message):
    info = json.loads((run / "run.json").read_text())
    assert info["format"] == 2
    (run / "run.json").write_text(json.dumps(info | {"format": found}))
    if found == "absent":
        (run / "run.json").write_text(json.dumps({k: v for k, v in info.items() if k != "format"}))
    with pytest.raises(RunError, match=message):
        Run(run)
    with pytest.raises(RunError, match=message):
        RunDirectory(run).check_free(resume=False, overwrite=False)


STATE = {
    "format": CHECKPOINT_FORMAT, "stage": "warmup", "position": {}, "network": {}, "optimiser": {}, "stage_state": {},
    "records": 0,
}  # fmt: skip


def test_checkpoints_have_a_format(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_last({key: value for key, value in STATE.items() if key != "format"})
    assert torch.load(checkpoints.last, weights_only=True)["format"] == CHECKPOINT_FORMAT
    assert checkpoints.load_last()["stage"] == "warmup"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({**STATE, "format": CHECKPOINT_FORMAT + 1}, "last.pt has format .*upgrade promptcal"),
        ({**STATE, "format": "x"}, "last.pt has an invalid format number 'x'"),
        ({**STATE, "format": None}, "last.pt has no format number"),
        ({"format": CHECKPOINT_FORMAT}, r"last\.pt is not a checkpoint of a fit"),
        ([1, 2], r"last\.pt is not a checkpoint of a fit"),
        *(
            ({**STATE, "seconds": s}, r"last\.pt is not a checkpoint of a fit")
            for s in (math.nan, math.inf, -1e9, "1", None, [0.0])
        ),
        *(
            ({**STATE, "phases": p}, r"last\.pt is not a checkpoint of a fit")
            for p in (7, None, [1.0], {"steps": math.nan}, {"steps": -1.0}, {"steps": "1"}, {1: 2.0})
        ),
    ],
)
def test_checkpoints_of_another_format_are_rejected(tmp_path, state, message):
    checkpoints = Checkpoints(tmp_path)
    torch.save({**state, "random": random_states()} if "stage" in state else state, checkpoints.last)
    with pytest.raises(RunError, match=message):
        checkpoints.load_last()


@pytest.mark.parametrize("part", ["stage", "position", "network", "optimiser", "stage_state", "records", "random"])
@pytest.mark.parametrize("value", [None, 7, "x", [1], {}, {"x": torch.tensor(math.nan)}])
def test_a_checkpoint_with_an_edited_part_is_rejected(tmp_path, part, value):
    """By the type of the part when it is read, or by its content when training continues with it."""
    checkpoints = Checkpoints(tmp_path)
    torch.save({**STATE, "random": random_states(), part: value}, checkpoints.last)
    torch.save({**STATE, "random": random_states(), part: value}, checkpoints.previous)
    try:
        state = checkpoints.load_last()
    except RunError as error:
        assert "last.pt is not a checkpoint of" in str(error)  # noqa: PT017
        checkpoints.last.write_bytes(b"damaged")
        with pytest.raises(RunError, match=r"last\.pt is damaged"):
            checkpoints.load_last()
    else:
        assert type(state[part]) is type(value)


def test_weights_of_another_network_are_rejected(tmp_path):
    network = torch.nn.Linear(2, 2)
    for name, value in (("x", torch.ones(2)), ("bias", torch.ones(3)), ("bias", torch.tensor([1.0, math.inf]))):
        with pytest.raises(ValueError, match=name):
            load_trained(network, {name: value})


# -- arbitrary values -------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("format", "status", "known_classes", "categories", "resize", "root", "folder", "former_names", "fingerprint")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(KEYS), value=JSON)
def test_any_run_json_is_valid_or_rejected(intact, tmp_path, key, value):
    info = json.loads((intact / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(info | {key: value}))
    shutil.copy(intact / "config.yaml", tmp_path)
    try:
        found = Run(tmp_path).info
    except RunError:
        return
    assert 1 <= found.resize <= 4096
    assert set(found.known_classes) <= set(found.categories)
    assert all(isinstance(name, str) for name in found.categories)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    column=st.sampled_from(["path", "cluster", "confidence", "labelled", "second", "second_confidence"]),
    value=st.text(max_size=12) | st.integers().map(str) | st.floats().map(str),
)
def test_any_assignments_are_valid_or_rejected(intact, tmp_path, column, value):
    with (intact / "assignments.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[3][column] = value
    for name in ("run.json", "config.yaml"):
        shutil.copy(intact / name, tmp_path / name)
    with (tmp_path / "assignments.csv").open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    try:
        found = Run(tmp_path).assignments()
    except RunError:
        return
    assert len(found) == len(rows)
    assert ((found.clusters >= 0) & (found.clusters < 4)).all()
    assert np.isfinite(found.confidence).all()
    assert len(found.categories) == len(rows)
