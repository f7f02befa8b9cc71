"""Links planted wherever the package writes a file: nothing outside the output is written, created or removed."""

import itertools
import os
import shutil
import signal

import numpy as np
import pytest

from promptcal import api
from promptcal.data.benchmarks import load_benchmark
from promptcal.data.cache import cache_key
from promptcal.data.images import ImageSet
from promptcal.errors import DataError, Interrupted, PromptCALError, RunError
from promptcal.experiments.efficiency import EfficiencyJob
from promptcal.run import Run, RunDirectory
from promptcal.runtime.files import append_text, truncate
from promptcal.runtime.locking import locked
from promptcal.training.loop import Loop


@pytest.fixture(scope="module")
def arguments(small_folder, quick_settings):
    overrides = (*quick_settings, "warmup.epochs=1", "affinity.epochs=1", "clustering.n_init=2")
    given = {"images": small_folder, "labels": small_folder / "labels.csv", "n_classes": 4, "overrides": overrides}
    return {**given, "progress": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, arguments):
    """A run with every file that the commands write into a run directory."""
    run = tmp_path_factory.mktemp("finished") / "run"
    api.fit(**arguments, output=run)
    write_everything(run)
    return run


@pytest.fixture(scope="module")
def stopped(arguments, tmp_path_factory):
    """A run that was stopped in its second stage."""
    run, done, step = tmp_path_factory.mktemp("stopped") / "run", [], Loop.step

    def step_then_interrupt(self, *given):
        step(self, *given)
        done.append(1)
        if len(done) == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "step", step_then_interrupt)
        with pytest.raises(Interrupted):
            api.fit(**arguments, output=run)
    return run


@pytest.fixture
def interrupted(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def write_everything(run):
    api.make_figure(name="curves", run=run, progress=False)
    api.evaluate(run=run, truth={"000.png": "a", "001.png": "b"})
    found = Run(run).assignments()
    api.name(run=run, labels={found.paths[found.categories.index("new-1")]: "named"})


def files_of(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def state(folder):
    """Names and contents of everything in a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def plant(run, outside, names, link, like=None):
    """Make each of the files a link to a file outside that has its content, or else that of the run ``like``."""
    for number, name in enumerate(names):
        precious = outside / f"{number}-{name.name}"
        content = run / name if (run / name).exists() else (like or run) / name
        precious.write_bytes(content.read_bytes() if content.exists() else b"precious\n")
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).unlink(missing_ok=True)
        link(precious, run / name)
    return state(outside)


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside"


LINKS = {"symbolic": lambda target, path: path.symlink_to(target), "hard": os.link}


def mixed():
    """Links of both kinds in turn."""
    kinds = itertools.cycle(LINKS.values())
    return lambda target, path: next(kinds)(target, path)


def test_a_fit_that_overwrites_a_run_of_links(finished, arguments, tmp_path, outside):
    shutil.copytree(finished, tmp_path / "run")
    planted = [name for name in files_of(tmp_path / "run") if name.name != ".lock"]
    assert {"last.pt", "previous.pt", "metrics.jsonl", "report.html", "curves.png", "index.json"} <= {
        name.name for name in planted
    }
    before = plant(tmp_path / "run", outside, planted, mixed())
    api.fit(**arguments, output=tmp_path / "run", overwrite=True)
    write_everything(tmp_path / "run")
    assert state(outside) == before
    assert {name for name in files_of(tmp_path / "run") if "tfevents" not in name.name} >= {
        name for name in planted if "tfevents" not in name.name
    }


def test_a_fit_that_resumes_a_run_of_links(finished, interrupted, arguments, outside):
    """Links at the names of all files that are written later, and at the checkpoints that are replaced."""
    left_out = ("before-naming", "tensorboard")
    later = [n for n in files_of(finished) if not (interrupted / n).exists() and n.parts[0] not in left_out]
    assert later
    replaced = [name for name in files_of(interrupted) if name.name not in (".lock", "metrics.jsonl")]
    before = plant(interrupted, outside, [*later, *replaced], mixed(), finished)
    api.fit(**arguments, output=interrupted, resume=True)
    write_everything(interrupted)
    assert state(outside) == before


@pytest.mark.filterwarnings("ignore:the training of")
@pytest.mark.parametrize("name", ["tensorboard/affinity", "checkpoints/x", "thumbnails/deep/er", "pending", "figures"])
def test_a_linked_folder_is_refused_wherever_it_is(interrupted, arguments, outside, name):
    (interrupted / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(interrupted / name, ignore_errors=True)
    (interrupted / name).symlink_to(outside)
    with pytest.raises(RunError, match=f"{name} is a link to a place outside the run"):
        api.fit(**arguments, output=interrupted, resume=True)
    with pytest.raises(RunError, match=f"{name} is a link to a place outside the run"):
        api.make_report(run=interrupted, progress=False)
    assert list(outside.iterdir()) == []


def test_exported_links_in_a_run_directory_are_no_obstacle(finished, tmp_path, outside):
    """Also if the images were moved since."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "export").mkdir()
    (tmp_path / "run" / "export" / "a.png").symlink_to(outside / "moved.png")
    (tmp_path / "run" / "export" / "b.png").symlink_to(tmp_path / "run" / "map.npz")
    assert len(Run(tmp_path / "run").assignments()) == 48


@pytest.mark.parametrize("kind", [*LINKS, "dangling"])
def test_a_lock_that_is_a_link_is_refused(finished, arguments, tmp_path, outside, kind):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink()
    if kind != "dangling":
        (outside / "precious").write_text("precious\n")
    LINKS.get(kind, LINKS["symbolic"])(outside / "precious", tmp_path / "run" / ".lock")
    before = state(outside)
    for work in (
        lambda: api.fit(**arguments, output=tmp_path / "run", overwrite=True),
        lambda: api.make_report(run=tmp_path / "run", progress=False),
        lambda: api.name(run=tmp_path / "run", labels={"041.png": "x"}),
    ):
        with pytest.raises(RunError, match="link"):
            work()
        assert state(outside) == before


@pytest.mark.parametrize("kind", LINKS)
def test_records_are_not_written_through_a_link(interrupted, arguments, outside, kind):
    before = plant(interrupted, outside, [(interrupted / "metrics.jsonl").relative_to(interrupted)], LINKS[kind])
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        api.fit(**arguments, output=interrupted, resume=True)
    assert state(outside) == before


def test_files_that_are_changed_in_place_are_not_links(tmp_path):
    append_text(tmp_path / "a", "one\n")
    append_text(tmp_path / "a", "zwei ü\n")
    truncate(tmp_path / "a", 100)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "one\nzwei ü\n"
    truncate(tmp_path / "a", 4)
    assert (tmp_path / "a").read_text() == "one\n"
    (tmp_path / "symbolic").symlink_to(tmp_path / "a")
    (tmp_path / "other").write_text("x\n")
    os.link(tmp_path / "other", tmp_path / "hard")
    for name in ("symbolic", "hard"):
        for write in (lambda path: append_text(path, "x"), lambda path: truncate(path, 0)):
            with pytest.raises(OSError, match="link"):
                write(tmp_path / name)
    assert ((tmp_path / "a").read_text(), (tmp_path / "other").read_text()) == ("one\n", "x\n")


@pytest.mark.parametrize("kind", LINKS)
def test_outputs_of_other_commands_replace_links_or_refuse_them(finished, small_folder, tmp_path, outside, kind):
    place = tmp_path / "outputs"
    place.mkdir()
    names = ("p.csv", "c.json", "e.csv", "e.parquet", "m.onnx", "m.json", "f", "r.html", "tsne.png", "class-count.json")
    before = plant(place, outside, [(place / name).relative_to(place) for name in names], LINKS[kind])
    api.predict(run=finished, images=np.zeros((1, 8, 8, 3), np.uint8), output=place / "p.csv", progress=False)
    api.check(images=small_folder, output=place / "c.json", progress=False)
    api.make_report(run=finished, output=place / "r.html", progress=False)
    api.make_figure(name="curves", run=finished, output=place / "tsne.png", progress=False)
    for to, name in (("csv", "e.csv"), ("csv", "e.parquet"), ("onnx", "m.onnx"), ("folders", "f"), ("onnx", "m.new")):
        with pytest.raises(PromptCALError, match="exists already"):
            api.export(run=finished, to=to, output=place / name, progress=False)
    assert state(outside) == before
    assert all((place / name).lstat().st_nlink == 1 and not (place / name).is_symlink() for name in names[:2])


@pytest.mark.parametrize("kind", LINKS)
def test_the_cache_of_decoded_images(arguments, small_folder, tmp_path, outside, kind):
    cache = tmp_path / "cache"
    cache.mkdir()
    key = cache_key(ImageSet.of(small_folder), 9)
    names = [(cache / f"{key}{end}").relative_to(cache) for end in (".pixels", ".json")]
    before = plant(cache, outside, names, LINKS[kind])
    mapped = {**arguments, "method": "kmeans", "report": False, "first_result": False}
    mapped["overrides"] = (*arguments["overrides"][:11], f"data.cache={cache}")
    api.fit(**mapped, output=tmp_path / "run")
    assert state(outside) == before
    assert sorted(path.relative_to(cache) for path in cache.iterdir()) == sorted(names)
    (tmp_path / "promptcal-cache").symlink_to(outside)
    mapped["overrides"] = (*arguments["overrides"][:11], "data.store=mapped")
    with pytest.raises(DataError, match="promptcal-cache is a link; give the folder that it links to as data.cache"):
        api.fit(**mapped, output=tmp_path / "run-2")
    assert state(outside) == before


def test_what_is_below_a_linked_folder_is_not_removed(tmp_path, outside):
    """Neither leftovers of killed processes nor files of the run that is overwritten."""
    (outside / ".x.0123456789ab.tmp").write_text("precious\n")
    directory = RunDirectory(tmp_path / "run")
    with locked(tmp_path / "lock", "x"):
        directory.path.mkdir()
        (directory.path / "figures").symlink_to(outside)
        (directory.path / ".y.0123456789ab.tmp").symlink_to(outside / ".x.0123456789ab.tmp")
    with directory.locked():
        assert not (directory.path / ".y.0123456789ab.tmp").is_symlink()
        directory.clear()
    assert (outside / ".x.0123456789ab.tmp").read_text() == "precious\n"
    assert not (directory.path / "figures").is_symlink()


def test_shards_are_not_written_through_links(finished, arguments, tmp_path, outside):
    """Links at the names of all files of a folder of shards, which is then written again."""
    given = {"run": finished, "source": arguments["images"], "workers": 1, "shard_size": 20, "progress": False}
    api.predict_shards(**given, output=tmp_path / "shards")
    planted = [name for name in files_of(tmp_path / "shards") if name.name not in (".lock", "plan.json")]
    assert {"manifest.json", "entries", "shards"} <= {name.parts[0] for name in planted}
    before = plant(tmp_path / "shards", outside, planted, mixed())
    for name in planted:
        if name.parts[0] == "entries":
            (tmp_path / "shards" / name).unlink()  # so that its shard is written again
    api.predict_shards(**given, output=tmp_path / "shards")
    assert state(outside) == before


@pytest.mark.parametrize("kind", [*LINKS, "dangling"])
def test_a_lock_of_shards_that_is_a_link_is_refused(finished, arguments, tmp_path, outside, kind):
    given = {"run": finished, "source": arguments["images"], "workers": 1, "progress": False}
    (tmp_path / "shards").mkdir()
    if kind != "dangling":
        (outside / "precious").write_text("precious\n")
    LINKS.get(kind, LINKS["symbolic"])(outside / "precious", tmp_path / "shards" / ".lock")
    before = state(outside)
    with pytest.raises(RunError, match="link"):
        api.predict_shards(**given, output=tmp_path / "shards")
    assert state(outside) == before


@pytest.mark.parametrize("folder", ["reports", "failures"])
def test_tables_are_not_written_through_a_linked_folder(tmp_path, outside, folder, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / folder).symlink_to(outside)
    if folder == "failures":
        monkeypatch.setattr(EfficiencyJob, "run", lambda self, request: 1 / 0)
    given = {"name": "efficiency", "scale": "mini", "rows": ["no prompts"], "progress": False}
    with pytest.raises(OSError, match=f"{folder}' *$|is a link, which may lead to any place"):
        api.table(**given, output=tmp_path / "out", seeds=[0], run=folder == "failures")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py", "fgvc-aircraft-2013b.tar.gz"])
def test_nothing_is_downloaded_through_a_link(tmp_path, outside, name, monkeypatch):
    """torchvision would write to what it links to."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(outside / "new")
    monkeypatch.setattr("urllib.request.urlopen", lambda *given, **named: pytest.fail("it was downloaded"))
    benchmark = "cifar10" if name.startswith("cifar") else "aircraft"
    with pytest.raises(DataError, match="is a link, which may lead to any place"):
        load_benchmark(benchmark, tmp_path / "data", download=True)
    assert list(outside.iterdir()) == []
