"""What a run directory lets a fit do, whatever state a crash left it in."""

import pytest

from promptcal.errors import RunError
from promptcal.run.inference import RunDirectory


def directory_with(tmp_path, *names):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    for name in names:
        (directory.path / name).write_text("")
    return directory


@pytest.mark.parametrize("names", [[".lock"], [".lock", "config.yaml", ".run.json.0123456789ab.tmp"]])
def test_a_fit_killed_before_it_began_is_in_no_ones_way(tmp_path, names):
    directory = directory_with(tmp_path, *names)
    for asked in ({}, {"resume": True}, {"overwrite": True}):
        assert directory.check_free(**{"resume": False, "overwrite": False, **asked}) is False
    with directory.locked():
        directory.clear()
        assert [path.name for path in directory.path.iterdir()] == [".lock"]


@pytest.mark.parametrize("names", [["holiday.jpg"], [".lock", "holiday.jpg"]])
def test_other_files_are_left_alone(tmp_path, names):
    directory = directory_with(tmp_path, *names)
    with pytest.raises(RunError, match="not empty and not a run"):
        directory.check_free(resume=False, overwrite=True)
    with pytest.raises(RunError, match="no run in .* to resume; leave --resume out"):
        directory.check_free(resume=True, overwrite=False)


def test_a_run_half_discarded_is_no_run(tmp_path):
    directory = directory_with(tmp_path, "assignments.csv")
    directory.write_info({"status": "finished"})
    with pytest.raises(RunError, match="holds a finished run"):
        directory.check_free(resume=False, overwrite=False)
    with directory.locked():
        directory.write_info({"status": "discarded"})  # as `clear` does first, and then is killed
    assert directory.check_free(resume=True, overwrite=False) is False
    assert directory.check_free(resume=False, overwrite=False) is False
    with directory.locked():
        directory.clear()
    assert not directory.exists()


def test_a_damaged_run_can_be_overwritten(tmp_path):
    directory = directory_with(tmp_path, "run.json")
    with pytest.raises(RunError, match="damaged.*--overwrite"):
        directory.check_free(resume=True, overwrite=False)
    assert directory.check_free(resume=False, overwrite=True) is False


def test_nothing_is_left_of_a_fit_that_could_not_begin(tmp_path):
    directory = RunDirectory(tmp_path / "run")

    def fail():
        with directory.locked():
            raise RunError("no such luck")

    with pytest.raises(RunError, match="no such luck"):
        fail()
    assert not directory.path.exists()
