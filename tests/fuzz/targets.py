"""What is fuzzed: each target gives bytes to a command, and the command must keep its promises.

They are: exit code 0 or 2 (1 for `check` and `table`, which found problems), at most one sentence on standard error, no
traceback, bounded time and memory, and nothing written outside the output.
"""

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import tarfile
import warnings
import zlib
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote

import numpy as np
import pyarrow
import torch
import yaml
from hypothesis import strategies as st
from inputs import VALUES, changed_bytes, csv_text, json_text, yaml_text
from PIL import Image
from pyarrow import feather, parquet
from safetensors.torch import load_file, save_file

from promptcal import api, cli
from promptcal.app.access import Access
from promptcal.app.actions import Assign, ImportLabels
from promptcal.app.hub import Hub
from promptcal.app.label_formats import read_labels_file
from promptcal.app.label_state import LabelState
from promptcal.app.label_store import LabelStore
from promptcal.app.routes import Routes
from promptcal.app.side_process import SideProcess
from promptcal.app.workspace import open_store
from promptcal.data import embedded_set
from promptcal.errors import PromptCALError, RunError
from promptcal.run.stored_run import StoredRun
from promptcal.training.checkpoints import FORMAT, Checkpoints, random_states

SECONDS = 30  # for one command, on a busy machine
LONGEST_MESSAGE = 4000
BACKBONE = "vit_tiny_patch4_32.promptcal"
SETTINGS = (f"model.backbone={BACKBONE}", "model.image_size=8", "clustering.n_init=2")


class Finding(AssertionError):
    """A promise that was broken."""


class Workspace:
    """A folder with a few images, a finished run, and files of every kind that a command reads."""

    def __init__(self, root):
        self.root = Path(root)
        self.images = self.root / "images"
        self.run = self.root / "run"
        self.features_run = self.root / "features-run"
        self.shards = self.root / "shards"
        self.file = self.root / "input"  # what is fuzzed, unless it is a part of the run
        self.output = self.root / "output"
        self.blocked = self.root / "blocked"  # a file: an output below it can never be written

    def build(self):
        self.images.mkdir(parents=True)
        self.blocked.write_text("")
        data = embedded_set("train")
        for i, image in enumerate(data.images[:8]):
            Image.fromarray(image[:12, :12]).save(self.images / f"{i}.png")
        labels = {"0.png": "cat", "1.png": "cat", "2.png": "dog"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = {"images": self.images, "labels": labels, "n_classes": 3, "method": "semi-supervised-kmeans"}
            api.fit(**given, output=self.run, overrides=SETTINGS, progress=False)
            api.evaluate(run=self.run, truth={f"{i}.png": "abc"[i % 3] for i in range(8)})
            api.cluster(features=FEATURES, n_classes=2, output=self.features_run, progress=False, report=False)
            given = {"run": self.run, "source": self.images, "workers": 1, "shard_size": 4, "progress": False}
            api.predict_shards(**given, output=self.shards)
            api.make_report(run=self.run, shards=self.shards, progress=False)
        (self.run / "skipped.csv").write_text("path,reason,position\nbroken.png,empty,3\n")
        record = {"stage": "warmup", "epoch": 1, "epochs": 2, "loss": 2.5, "validation/known": 0.5, "seconds": 0.1}
        (self.run / "metrics.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(record | {'epoch': 2})}\n")
        info = json.loads((self.run / "run.json").read_text())
        (self.run / "run.json").write_text(json.dumps(info | {"sha256": {}}))  # checksums only stop accidents
        save_file(load_file(self.run / "centroids.safetensors"), self.run / "centroids.safetensors")
        shutil.copytree(self.root, self.root.with_suffix(".sound"))
        return self

    def restore(self):
        """After a process that died in the middle of a case."""
        shutil.rmtree(self.root)
        shutil.copytree(self.root.with_suffix(".sound"), self.root)

    def state(self):
        """Everything outside the outputs."""
        places = (self.root, self.images, self.root.parent, self.shards, self.shards / "shards")
        inside = {self.run, self.output, self.file}
        return {
            entry.path: (entry.stat(follow_symlinks=False).st_size, entry.stat(follow_symlinks=False).st_mtime_ns)
            for place in places
            for entry in os.scandir(place)
            if Path(entry.path) not in inside and not entry.is_dir(follow_symlinks=False)
        }


def command(*words, codes=(0, 2)):
    """Run `promptcal WORDS` in this process and check what it promises."""
    said, printed, code = io.StringIO(), io.StringIO(), 0
    before, handler = sys.argv, signal.signal(signal.SIGALRM, _out_of_time)
    sys.argv = ["promptcal", *map(str, words)]
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings are further sentences
            try:
                cli.main()
            except SystemExit as ended:
                code = ended.code or 0
    except Finding:
        raise
    except BaseException as error:
        raise Finding(f"{words[0]}: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        sys.argv = before
    lines = [line for line in said.getvalue().splitlines() if line.strip()]
    if code not in codes or "Traceback" in said.getvalue():
        raise Finding(f"{words[0]}: exit code {code}: {said.getvalue()[:300]}")
    if code == 2 and not re.match(r"promptcal: \S", lines[0] if lines else ""):
        raise Finding(f"{words[0]}: no sentence, but {lines[:3]}")
    if code == 2 and (len(lines) > 1 or len(said.getvalue()) > LONGEST_MESSAGE):
        raise Finding(f"{words[0]}: more than a sentence: {lines[:5]}"[:500])


def _out_of_time(number, frame):
    raise Finding(f"no end after {SECONDS} s")


# -- targets: a function of the workspace and the bytes, and a function of the workspace that gives a strategy ------


def check_labels(space, data):
    space.file.write_bytes(data)
    command("check", space.images, "--labels", space.file, "--quiet", codes=(0, 1, 2))


LABELS = b'path,label\n0.png,cat\n1.png,\n2.png,dog\n./3.png,"a, b"\n'


def label_inputs(space):
    sound = [LABELS, b"\xef\xbb\xbf" + LABELS, LABELS.decode().encode("utf-16"), LABELS.replace(b",", b";")]
    rows = st.lists(st.lists(st.text(max_size=6), max_size=4), max_size=6)
    made = rows.map(lambda value: ("path,label\n" + "\n".join(map(",".join, value))).encode("utf-8", "replace"))
    return changed_bytes(sound) | csv_text(LABELS) | made | st.binary(max_size=200)


def parquet_inputs(space):
    import pyarrow
    from pyarrow import parquet

    sound = []
    for compression in ("none", "gzip"):
        for labels in (["cat", None, "dog"], [1, 2, -1], [0.5, None, 1.0]):
            buffer = io.BytesIO()
            table = pyarrow.table({"path": ["0.png", "1.png", "2.png"], "label": labels})
            parquet.write_table(table, buffer, compression=compression)
            sound.append(buffer.getvalue())
    return changed_bytes(sound)


def fit_with_config(space, data):
    """The output cannot be written, so a config that is accepted is refused after it was checked."""
    space.file.write_bytes(data)
    words = ("fit", space.images, "--config", space.file, "--output", space.blocked / "run", "--quiet")
    command(*words, "--n-classes", "3", codes=(2,))


def config_inputs(space):
    sound = (space.run / "config.yaml").read_bytes()
    short = b"n_classes: 3\nmodel: {prompts: 2}\noptim: {lr: 0.1, milestones: [1, 2]}\n"
    return (
        changed_bytes([short])
        | yaml_text(sound)
        | yaml_text(short)
        | st.text().map(lambda t: t.encode("utf-8", "replace"))
    )


def fit_with_override(space, data):
    text = data.decode("utf-8", "replace").replace("\0", "")  # a command line has none
    words = ("fit", space.images, "--output", space.blocked / "run", "--quiet", f"--set={text}")
    command(*words, "--n-classes", "3", codes=(2,))


def override_inputs(space):
    config = yaml.safe_load((space.run / "config.yaml").read_text())
    keys = [f"{a}.{b}" for a, inner in config.items() if isinstance(inner, dict) for b in inner] + list(config)
    named = st.tuples(st.sampled_from(keys), VALUES).map(lambda pair: f"{pair[0]}={pair[1]}")
    return (named | st.text(max_size=30)).map(lambda text: text.encode("utf-8", "replace"))


def with_run_file(space, data, *commands):
    """``data`` is the name of a file of the run, a NUL, and its new content."""
    name, _, content = data.partition(b"\0")
    file = space.run / name.decode("ascii", "replace")
    if not file.resolve().is_relative_to(space.run.resolve()):
        return
    before = file.read_bytes() if file.is_file() else None
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    try:
        for words in commands:
            shutil.rmtree(space.output, ignore_errors=True)
            command(*words)
    finally:
        file.unlink(missing_ok=True)
        if before is not None:
            file.write_bytes(before)


def use_run(space, data):
    image = space.images / "0.png"
    truth = space.root / "labels.csv"
    truth.write_bytes(LABELS)
    with_run_file(
        space,
        data,
        ("predict", space.run, image, "--quiet", "--output", space.output),
        ("evaluate", space.run, "--truth", truth),
        ("export", space.run, "--to", "embeddings", "--output", space.output, "--quiet"),
        ("export", space.run, "--to", "folders", "--output", space.output, "--quiet"),
    )


def name_run(space, data):
    """The command replaces files of the run, so it gets a copy."""
    name, _, content = data.partition(b"\0")
    shutil.rmtree(space.output, ignore_errors=True)
    shutil.copytree(space.run, space.output)
    file = space.output / name.decode("ascii", "replace")
    labels = space.root / "labels.csv"
    try:
        if name == b"labels.csv":
            labels.write_bytes(content)
        else:
            file.write_bytes(content)
        command("name", space.output, labels)
        command("name", space.output, "--undo")
        command("predict", space.output, space.images / "0.png", "--quiet")
    finally:
        shutil.rmtree(space.output)


def name_inputs(space):
    def content(name):
        return (space.run / name).read_bytes()

    held_out = json.dumps({"paths": ["0.png", "2.png"]}).encode()
    structured = [_named("run.json", json_text(content("run.json"))), _named("held_out.json", json_text(held_out))]
    structured += [
        _named("assignments.csv", csv_text(content("assignments.csv"))),
        _named("labels.csv", csv_text(LABELS)),
    ]
    return st.one_of(*structured, _named("labels.csv", changed_bytes([LABELS])), _named("embeddings.npy", embeddings()))


def report_run(space, data):
    with_run_file(space, data, ("report", space.run, "--quiet", "--output", space.output))


def _named(name, strategy):
    return strategy.map(lambda content: name.encode() + b"\0" + content)


def run_inputs(space):
    def content(name):
        return (space.run / name).read_bytes()

    structured = [_named(name, json_text(content(name))) for name in ("run.json", "calibration.json")]
    structured += [_named("config.yaml", yaml_text(content("config.yaml")))]
    structured += [_named(name, csv_text(content(name))) for name in ("assignments.csv", "skipped.csv")]
    names = (
        "run.json",
        "calibration.json",
        "config.yaml",
        "assignments.csv",
        "embeddings.npy",
        "centroids.safetensors",
    )
    arrays = _named("embeddings.npy", embeddings())
    return st.one_of(*structured, arrays, *(_named(name, changed_bytes([content(name)])) for name in names))


def report_inputs(space):
    def content(name):
        return (space.run / name).read_bytes()

    names = ("map.npz", "attention.npz", "thumbnails/index.json", "thumbnails/0000.webp", "thumbnails/examples.npz")
    names += ("results.json", "metrics.jsonl", "truth.csv", "embeddings.npy")
    structured = [
        _named(name, json_text(content(name))) for name in ("thumbnails/index.json", "results.json", "run.json")
    ]
    line = content("metrics.jsonl").splitlines()[0]
    structured += [_named("metrics.jsonl", json_text(line)), _named("truth.csv", csv_text(content("truth.csv")))]
    structured += [_named("embeddings.npy", embeddings())]
    return st.one_of(*structured, *(_named(name, changed_bytes([content(name)])) for name in names))


@st.composite
def embeddings(draw):
    """Arrays of other types and shapes, and arrays that fit the run but have hostile values."""
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(["f4", ">f4", "f8", "f2", "i4", "u1", "?", "U3", "c8"]))
        array = np.ones(draw(st.lists(st.integers(0, 9), max_size=3)), dtype=dtype)
    else:
        array = np.random.default_rng(draw(st.integers(0, 9))).normal(size=(8, draw(st.sampled_from([1, 2, 192]))))
        rows = draw(st.lists(st.integers(0, 7), min_size=1, max_size=8))
        array[rows] = draw(st.sampled_from([0.0, 1.0, np.nan, np.inf, -3e38, 1e20, 1e15, 1e-45]))
        array = array.astype(np.float32, order=draw(st.sampled_from(["C", "F"])))
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def check_image(space, data):
    space.file.mkdir()
    try:
        (space.file / "a.png").write_bytes(data)
        command("check", space.file, "--quiet", codes=(0, 1, 2))
        command("predict", space.run, space.file, "--quiet", "--skip-unreadable", "--output", space.output)
    finally:
        shutil.rmtree(space.file)


def image_inputs(space):
    sound = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        for mode in ("RGB", "L", "P", "RGBA", "CMYK", "I;16", "1"):
            buffer = io.BytesIO()
            with contextlib.suppress(OSError, ValueError):
                Image.fromarray(embedded_set("train").images[3]).convert("RGB").convert(mode).save(buffer, kind)
                sound.append(buffer.getvalue())
    return changed_bytes(sound) | st.binary(max_size=64)


def read_checkpoint(space, data):
    """As a fit with --resume reads it."""
    space.file.mkdir()
    try:
        (space.file / "last.pt").write_bytes(data)
        checkpoints = Checkpoints(space.file)
        checkpoints.describe_last()
        with contextlib.suppress(PromptCALError):
            checkpoints.load_last()
    except Exception as error:
        raise Finding(f"checkpoint: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        shutil.rmtree(space.file)


def checkpoint_inputs(space):
    state = {"format": FORMAT, "stage": "warmup", "position": {"epoch": 1, "step": 0}, "network": {"a": torch.ones(3)}}
    state |= {"optimiser": {}, "stage_state": {}, "records": 0, "phases": {"other": 1.0}, "random": random_states()}

    def saved(value):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue()

    parts = st.tuples(st.sampled_from(list(state)), VALUES).map(lambda pair: saved(state | {pair[0]: pair[1]}))
    return parts | changed_bytes([saved(state)])


def load_weight_file(space, data):
    """Weights for the backbone; the output cannot be written, so weights that are accepted are refused later."""
    space.file.write_bytes(data)
    words = ("estimate-classes", space.images, "--labels", space.root / "labels.csv", "--backbone", BACKBONE)
    (space.root / "labels.csv").write_bytes(LABELS)
    command(*words, "--weights", space.file, "--quiet", "--output", space.blocked)


def weight_inputs(space):
    weights = {"cls_token": torch.zeros(1, 1, 192), "norm.weight": torch.ones(192), "x": torch.ones(2)}
    safe, pickled = space.root / "sound.safetensors", io.BytesIO()
    save_file(weights, safe)
    torch.save(weights, pickled)
    sound = [safe.read_bytes(), pickled.getvalue()]
    safe.unlink()
    return changed_bytes(sound)


FEATURES = np.arange(24, dtype=np.float32).reshape(8, 3) % 7 + 1
FEATURE_SUFFIXES = ("npy", "npz", "parquet", "arrow", "safetensors", "csv")


def cluster_features(space, data):
    """The first byte says the format; the output cannot be written, so features that are accepted are refused later."""
    suffix = FEATURE_SUFFIXES[data[0] % len(FEATURE_SUFFIXES)] if data else "npy"
    space.file.mkdir()
    file = space.file / f"x.{suffix}"
    file.write_bytes(data[1:])
    try:
        command("cluster", file, "--n-classes", 2, "--output", space.blocked / "run", "--quiet")
        command("predict", space.features_run, file, "--output", space.blocked / "x.csv", "--quiet")
    finally:
        shutil.rmtree(space.file)


def feature_inputs(space):
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(FEATURES.reshape(-1)), 3)
    table = pyarrow.table({"id": [f"r{i}" for i in range(8)], "embedding": lists})
    folder = space.root / "sound"
    folder.mkdir()
    np.save(folder / "x.npy", FEATURES)
    np.savez(folder / "x.npz", features=FEATURES, ids=np.array([f"r{i}" for i in range(8)]))
    parquet.write_table(table, folder / "x.parquet")
    feather.write_feather(table, folder / "x.arrow", compression="uncompressed")
    save_file({"features": torch.from_numpy(FEATURES)}, folder / "x.safetensors")
    (folder / "x.csv").write_text("id,a,b\n" + "".join(f"r{i},{i + 1},{i % 3}\n" for i in range(8)))
    sound = [bytes([i]) + (folder / f"x.{suffix}").read_bytes() for i, suffix in enumerate(FEATURE_SUFFIXES)]
    shutil.rmtree(folder)
    return changed_bytes(sound)


def predict_source(space, data):
    """The first byte says the kind of a file of many images or embeddings."""
    if not data:
        return
    run, name = ((space.run, "x.tar"), (space.run, "x.parquet"), (space.features_run, "x.parquet"))[data[0] % 3]
    space.file.mkdir()
    (space.file / name).write_bytes(data[1:])
    words = ("--output", space.output, "--workers", 1, "--quiet")
    try:
        command("predict", run, space.file, *words)
        shutil.rmtree(space.output, ignore_errors=True)
        if run == space.run:  # the output cannot be written, so a sample that is accepted is refused later
            sample = ("--sample", 3, "--n-classes", 2, "--output", space.blocked / "run", "--quiet")
            command("fit", space.file, *sample, *(word for setting in SETTINGS for word in ("--set", setting)))
        else:
            command("cluster", space.file, "--n-classes", 2, "--output", space.blocked / "run", "--quiet")
    finally:
        shutil.rmtree(space.file)


def source_inputs(space):
    pictures = [(space.images / f"{i}.png").read_bytes() for i in range(2)]
    tars = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
            for name, content in (("a.png", pictures[0]), ("ü" * 45 + ".png", pictures[1]), ("a.json", b"{}")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        tars.append(b"\0" + buffer.getvalue())
    ids = ["a", "b"]
    places = [str(space.images / "0.png"), "images/1.png"]
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(FEATURES[:2].reshape(-1)), 3)
    tables = [
        (1, pyarrow.table({"id": ids, "image": pictures})),
        (1, pyarrow.table({"id": [1, 2], "image": [{"bytes": p, "path": None} for p in pictures]})),
        (1, pyarrow.table({"id": ids, "path": places})),
        (2, pyarrow.table({"id": ids, "embedding": lists, "path": places})),
    ]
    values = st.lists(VALUES, min_size=2, max_size=2)
    columns = st.tuples(st.sampled_from(tables), st.integers(0, 2), values).map(_with_column)
    return changed_bytes(tars) | changed_bytes([bytes([kind]) + _as_parquet(table) for kind, table in tables]) | columns


def _with_column(drawn):
    """A table with a column of hostile values."""
    (kind, table), place, values = drawn
    place %= table.num_columns
    try:
        table = table.set_column(place, table.column_names[place], pyarrow.array(values))
        return bytes([kind]) + _as_parquet(table)
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):  # of which no column can be made
        return bytes([kind]) + _as_parquet(table.slice(0, 0))


def _as_parquet(table):
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def use_shards(space, data):
    """``data`` is the name of a file of a folder of shards, a NUL, and its new content."""
    name, _, content = data.partition(b"\0")
    shutil.rmtree(space.output, ignore_errors=True)
    shutil.copytree(space.shards, space.output)
    file = space.output / name.decode("ascii", "replace")
    try:
        file.write_bytes(content)
        if file.name != "manifest.json":
            (space.output / "manifest.json").unlink()
        words = ("--engine", "local", "--workers", 1, "--quiet")
        command("predict", space.run, space.images, "--output", space.output, *words, codes=(0, 2))
        command("report", space.run, "--shards", space.output, "--output", space.blocked / "x.html", "--quiet")
        command("cluster", space.output, "--n-classes", 2, "--output", space.blocked / "run", "--quiet")
    finally:
        shutil.rmtree(space.output)


def shards_inputs(space):
    files = sorted(file for file in space.shards.rglob("*") if file.is_file() and file.name != ".lock")
    named = {str(file.relative_to(space.shards)): file.read_bytes() for file in files}
    structured = [_named(name, json_text(named[name])) for name in named if name.endswith(".json")]
    return st.one_of(*structured, *(_named(name, changed_bytes([content])) for name, content in named.items()))


def app_call(what, call):
    """What the server of the app calls: any error but those that it shows as a sentence is a finding."""
    handler = signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(SECONDS)
    try:
        with contextlib.suppress(PromptCALError), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            call()
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def import_labels(space, data):
    """A file of labels that a page sends: CSV, or Label Studio's JSON."""

    def read():
        run = StoredRun(space.run)
        labels = read_labels_file(data, *run.given_images())
        action = ImportLabels(source="x", labels=labels)
        json.dumps(action.apply(LabelState.of(run.assignments())).label_names()).encode()

    app_call("import", read)


def import_inputs(space):
    choice = {"from_name": "category", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}
    task = {"id": 1, "data": {"image": "/data/local-files/?d=0.png", "path": "0.png"}}
    task |= {"annotations": [{"was_cancelled": False, "result": [choice]}], "predictions": []}
    short = {"image": "s3://bucket/1.png", "category": "dog"}
    sound = [json.dumps(value).encode() for value in ([task], [short], task)]
    return st.one_of(*map(json_text, sound), changed_bytes([*sound, LABELS]), csv_text(LABELS))


def read_store(space, data):
    """`labels.sqlite` of a run from somebody else: as a file, or a value in one of its columns."""
    shutil.rmtree(space.output, ignore_errors=True)
    space.output.mkdir()
    file = space.output / "labels.sqlite"
    column, separator, content = data.partition(b"\0")
    if column in STORE_COLUMNS and separator:
        file.write_bytes(_sound_store(space))
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
            table, name = column.decode().split(".")
            connection.execute(f"UPDATE {table} SET {name} = ?", (zlib.compress(content),))
            connection.execute("UPDATE base SET digest = 'old'")
    else:
        file.write_bytes(data)

    def use():
        found = StoredRun(space.run).assignments()
        store, _ = open_store(space.output, found)
        with contextlib.closing(store):
            store.replay(LabelState.of(found))
            json.dumps([store.labels(), *map(vars, store.actions()), *map(vars, store.attempts())]).encode()
            store.undo()
            store.append(Assign(images=[0], category=0), "x")

    app_call("store", use)


STORE_COLUMNS = (b"base.content", b"actions.payload")


# What a page asks the server, without what is computed in a process of its own.
APP_BODIES = {
    b"POST api/action": [
        {"kind": "assign", "images": [0, 1], "category": 1},
        {"kind": "create", "name": "owl", "images": [2]},
        {"kind": "rename", "category": 2, "name": "owl"},
        {"kind": "merge", "source": 2, "target": 1},
        {"kind": "split", "images": [0, 1, 2], "parts": [0, 0, 1]},
        {"kind": "none", "images": [3]},
        {"kind": "remove", "images": [0]},
        {"kind": "accept", "images": [4]},
    ],
    b"POST api/split-preview": [{"images": [1], "n": 2}],
    b"POST api/refit/load": [{"attempt": 1}],
    b"POST api/undo": [{}],
    b"POST api/refit/accept": [{}],
}
APP_PATHS = (
    *("api/run", "api/state", "api/history", "api/refit", "api/attention", "api/import?name=x", "image/0/160"),
    *("export/csv", "export/coco", "export/label-studio", "report", "/", "/assets/main.js", "/api/runs", "/api/state"),
)


def ask_app(space, data):
    """``data`` is a method, a blank and a path; then the body, after a NUL."""
    line, _, body = data.partition(b"\0")
    method, _, path = line.decode("latin-1").partition(" ")
    path, _, query = (path if path.startswith("/") else f"/r/run/{path}").partition("?")
    kept, told = ("labels.sqlite", "labels.sqlite-journal", ".labels.lock"), []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path), "raw_path": path.encode("latin-1"), "query_string": query.encode("latin-1"),
        "headers": [(b"host", b"127.0.0.1:1"), (b"origin", b"http://127.0.0.1:1"), (b"authorization", b"Bearer t")],
        "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "root_path": "",
    }  # fmt: skip

    async def talk():
        parts = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

        async def receive():
            return parts.pop(0) if parts else await asyncio.Event().wait()

        async def send(message):
            told.append(message)

        await Access(Routes(hub).app(), token="t", host="127.0.0.1", port=1)(scope, receive, send)

    hub = Hub(space.run)
    try:
        with patch.object(SideProcess, "call", side_effect=RunError("nothing is computed in another process here")):
            app_call("app", lambda: asyncio.run(talk()))
    finally:
        hub.close()
        for name in kept:
            (space.run / name).unlink(missing_ok=True)
    statuses = [message["status"] for message in told if "status" in message]
    content = b"".join(message.get("body", b"") for message in told)
    if len(statuses) != 1 or statuses[0] >= 500 or (statuses[0] == 400 and len(content) > LONGEST_MESSAGE):
        raise Finding(f"app: {statuses} {content[:300]!r}")


def app_inputs(space):
    bodies = [
        json_text(json.dumps(body)).map(lambda text, line=line: line + b"\0" + text)
        for line, found in APP_BODIES.items()
        for body in found
    ]
    lines = [*APP_BODIES]
    lines += [f"{method} {path}".encode() for method in ("GET", "HEAD", "PUT") for path in APP_PATHS]
    lines += [b"POST api/import?name=%ff\0path,label\n0.png,cat\n"]
    return st.one_of(*bodies, changed_bytes(lines))


def _sound_store(space):
    file = space.root / "sound.sqlite"
    found = StoredRun(space.run).assignments()
    with contextlib.closing(LabelStore(file)) as store:
        store.begin(found)
        store.append(Assign(images=[0, 1], category=1), "label 2 images")
    content = file.read_bytes()
    file.unlink()
    return content


def store_inputs(space):
    content = _sound_store(space)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(content)
        base = zlib.decompress(connection.execute("SELECT content FROM base").fetchone()[0])
    actions = [Assign(images=[0, 1], category=1), ImportLabels(source="x", labels={0: "a", 1: ""})]
    actions = [action.model_dump_json().encode() for action in actions]
    columns = [_named(STORE_COLUMNS[0].decode(), json_text(base))]
    columns += [_named(STORE_COLUMNS[1].decode(), json_text(action)) for action in actions]
    return st.one_of(changed_bytes([content]), *columns)


TARGETS = {
    "labels": (check_labels, label_inputs),
    "features": (cluster_features, feature_inputs),
    "parquet": (check_labels, parquet_inputs),
    "config": (fit_with_config, config_inputs),
    "override": (fit_with_override, override_inputs),
    "run": (use_run, run_inputs),
    "report": (report_run, report_inputs),
    "name": (name_run, name_inputs),
    "image": (check_image, image_inputs),
    "checkpoint": (read_checkpoint, checkpoint_inputs),
    "weights": (load_weight_file, weight_inputs),
    "source": (predict_source, source_inputs),
    "shards": (use_shards, shards_inputs),
    "import": (import_labels, import_inputs),
    "store": (read_store, store_inputs),
    "app": (ask_app, app_inputs),
}


def try_input(name, space, data):
    """Give an input to a target; a `Finding` if a promise is broken."""
    (space.root / "labels.csv").write_bytes(LABELS)
    before = space.state()
    TARGETS[name][0](space, data)
    (space.root / "labels.csv").write_bytes(LABELS)
    after = space.state()
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    changed = [path for path in changed if Path(path).name != "labels.csv"]
    if changed:
        raise Finding(f"written outside the output: {changed[:3]}")
    if space.file.exists() and space.file.is_file():
        space.file.unlink()
    if space.output.is_dir():
        shutil.rmtree(space.output)
    else:
        space.output.unlink(missing_ok=True)
