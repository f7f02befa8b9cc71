"""Methods with state besides their weights are resumed exactly."""

import pytest

from promptcal.api import fit
from promptcal.errors import Interrupted


@pytest.mark.parametrize(
    ("method", "stop_at"),
    [
        ("orca", 4),  # in the second epoch, whose margin comes from the first one
        ("uno", 2),  # in the first epoch, with losses by head
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(
    interrupted_at, outcome, tmp_path, small_set, common_settings, method, stop_at
):
    images, _, labels = small_set
    arguments = {
        "images": images, "labels": labels, "n_classes": 4, "method": method, "progress": False,
        "overrides": (*common_settings, "tensorboard=no"),
    }  # fmt: skip
    fit(**arguments, output=tmp_path / "whole")
    done = interrupted_at(stop_at)
    with pytest.raises(Interrupted, match="--resume"):
        fit(**arguments, output=tmp_path / "run")
    fit(**arguments, output=tmp_path / "run", resume=True)
    assert len(done) == 6  # nothing was computed twice
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
