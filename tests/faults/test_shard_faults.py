"""Every operation on files of `predict` in shards fails once in turn; the same command then completes to equal rows."""

import errno
import itertools
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import leftovers
from test_fault_schedule import ERRORS, FileLayer

from promptcal import api
from promptcal.errors import PromptCALError

BACKBONE = "vit_tiny_patch4_32.promptcal"
SETTINGS = (f"model.backbone={BACKBONE}", "model.image_size=8", "clustering.n_init=2")


@pytest.fixture(scope="module")
def command(image_folder, tmp_path_factory):
    """Assign the images in two shards."""
    given = {"images": image_folder, "labels": image_folder / "labels.csv", "n_classes": 4, "quick": True}
    run = tmp_path_factory.mktemp("shard-faults") / "run"
    api.fit(**given, output=run, overrides=SETTINGS, report=False, progress=False)
    return {"run": run, "source": image_folder, "shard_size": 12, "workers": 1, "progress": False}


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory):
    """Its rows, and its operations on files."""
    output = tmp_path_factory.mktemp("undisturbed-shards") / "out"
    with FileLayer().active() as layer:
        api.predict_shards(**command, output=output)
    return rows_of(output), layer.done


def rows_of(output):
    tables = [pq.read_table(file) for file in sorted((output / "shards").glob("*.parquet"))]
    return pa.concat_tables(tables, promote_options="default")


def finished_shards(output):
    """Shards that have an entry, by name, with the time when they were written."""
    entries = (output / "entries").glob("*.json")
    return {e.stem: (output / "shards" / f"{e.stem}.parquet").stat().st_mtime_ns for e in entries}


def check_point(command, undisturbed, output, point, number):
    """Whether the command failed at this point; in any case, the same command ends with the same rows."""
    expected, done = undisturbed
    where, said = (point, done[point], errno.errorcode[number]), ""
    with FileLayer(point, number).active():
        try:
            api.predict_shards(**command, output=output)
        except (PromptCALError, OSError) as error:  # the command line shows both as one sentence
            said = str(error)
    assert "\n" not in said, where
    assert leftovers(output) == [] or done[point][0] == "unlink", where
    kept = finished_shards(output)
    manifest = api.predict_shards(**command, output=output).manifest
    assert manifest is not None, where
    assert manifest.rows == len(expected), where
    assert rows_of(output).equals(expected), where
    assert kept.items() <= finished_shards(output).items(), where  # none was computed again
    assert leftovers(output) == [], where
    return bool(said)


def test_a_sample_of_the_schedule(command, undisturbed, tmp_path):
    chosen = range(len(undisturbed[1]))[::4]
    assert len(chosen) >= 8
    failed = [
        check_point(command, undisturbed, tmp_path / f"{point}", point, number)
        for point, number in zip(chosen, itertools.cycle(ERRORS), strict=False)
    ]
    assert sum(failed) > len(failed) // 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_the_whole_schedule(command, undisturbed, tmp_path, number):
    n = len(undisturbed[1])
    failed = [check_point(command, undisturbed, tmp_path / f"{point}", point, number) for point in range(n)]
    print(f"{os.strerror(number)}: {n} fault points, {sum(failed)} stopped the command")
    assert sum(failed) > n // 2
