"""What a fit may do with an existing run directory, whatever state a crash left it in."""

import json

import pytest

from promptcal.errors import RunError
from promptcal.run import Run, RunDirectory, RunInfo


def directory_with(tmp_path, *names):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    for name in names:
        (directory.path / name).write_text("")
    return directory


@pytest.mark.parametrize("names", [[".lock"], [".lock", "config.yaml", ".run.json.0123456789ab.tmp"]])
def test_a_fit_killed_before_it_began_can_be_started_again(tmp_path, names):
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
    with pytest.raises(RunError, match="no run in .* to resume; remove --resume"):
        directory.check_free(resume=True, overwrite=False)


def test_a_run_that_is_being_removed_can_be_replaced(tmp_path):
    directory = directory_with(tmp_path, "assignments.csv")
    RunInfo(status="finished", categories=["a"]).write(directory.info_file)
    with pytest.raises(RunError, match="holds a finished run"):
        directory.check_free(resume=False, overwrite=False)
    with directory.locked():
        RunInfo(status="discarded").write(directory.info_file)  # `clear` does this first, and may be killed then
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


def test_a_run_of_version_0_1_is_rejected_in_one_sentence(tmp_path, promptcal):
    """`run.json` as version 0.1 wrote it."""
    directory = directory_with(tmp_path, "config.yaml", "assignments.csv", "model.safetensors", "centres.safetensors")
    info = {
        "format": 1, "promptcal": "0.1.0", "status": "finished", "root": "/photos", "folder": "/photos",
        "n_images": 48, "n_labelled": 12, "known_classes": ["cat", "dog"], "resize": 18, "n_classes": 3,
        "categories": ["cat", "dog", "new-1"], "fingerprint": "0f", "sha256": {},
    }  # fmt: skip
    directory.info_file.write_text(json.dumps(info))
    message = (
        f"{directory.path} has format 1 (written by promptcal 0.1.0) and promptcal VERSION reads 2 and later; "
        "use that version to read it, or fit again"
    )
    for use in (
        lambda: Run(directory.path),
        lambda: directory.check_free(resume=True, overwrite=False),
        lambda: directory.check_free(resume=False, overwrite=False),
    ):
        with pytest.raises(RunError) as raised:
            use()
        assert str(raised.value).replace(RunInfo(status="running").promptcal, "VERSION") == message
    for arguments in (["report"], ["evaluate", "--truth", "truth.csv"], ["export", "--to", "csv", "--output", "out"]):
        code, out, err = promptcal(arguments[0], directory.path, *arguments[1:])
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "has format 1 (written by promptcal 0.1.0)" in err
    assert directory.check_free(resume=False, overwrite=True) is False


def test_a_fit_that_could_not_begin_leaves_nothing(tmp_path):
    directory = RunDirectory(tmp_path / "run")

    def fail():
        with directory.locked():
            raise RunError("a problem")

    with pytest.raises(RunError, match="a problem"):
        fail()
    assert not directory.path.exists()
