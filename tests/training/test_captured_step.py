"""When a step is computed, captured and replayed. That replayed steps are right is in test_cuda.py."""

import pytest
import torch

from promptcal.training import captured_step
from promptcal.training.captured_step import CapturedUpdate, plain_update
from promptcal.training.stage import Batch, Stage, StepResult


class Capture:
    """Stands for a CUDA graph, which needs a GPU."""

    @classmethod
    def of(cls, compute, batch, epochs_done):
        return cls()

    def replay(self, batch):
        return {"how": "replayed"}


def batch_of(n=4):
    return Batch(torch.zeros(n, 3, 2, 2), torch.zeros(n), torch.arange(n), torch.Generator())


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([(), (), (), ()], "crrr"),
        ([1, 2, 2, 2], "ccrr"),
        ([1, 1, 2, 1, 1], "crccr"),
        ([None, None, (), ()], "cccr"),
        ([(), (), None, ()], "crcc"),
    ],
)
def test_a_step_is_replayed_from_the_second_one_with_the_same_key_on(monkeypatch, keys, expected):
    monkeypatch.setattr(captured_step, "CapturedStep", Capture)
    update = CapturedUpdate(lambda epochs_done: keys[int(epochs_done)])
    found = [update(lambda *given: {"how": "computed"}, batch_of(), float(i))["how"][0] for i in range(len(keys))]
    assert "".join(found) == expected
    assert update.is_captured == (expected[-1] == "r")


def test_a_batch_of_another_size_is_not_replayed(monkeypatch):
    monkeypatch.setattr(captured_step, "CapturedStep", Capture)
    update = CapturedUpdate(lambda epochs_done: ())
    found = [update(lambda *given: {"how": "computed"}, batch_of(n), 0.0)["how"] for n in (4, 4, 6)]
    assert found == ["computed", "replayed", "computed"]
    assert plain_update(lambda *given: {"loss": given[1]}, batch_of(), 3.0) == {"loss": 3.0}


class Plain(Stage):
    def step(self, batch, epochs_done):
        return StepResult(torch.zeros(()), {})


class Capturable(Plain):
    def capture_key(self, epochs_done):
        return ()


class ChangedStep(Capturable):
    def step(self, batch, epochs_done):
        return StepResult(torch.tensor(epochs_done), {})


class ChangedAfterwards(Capturable):
    def after_update(self):
        self.done = True


class OnlyDescribed(Capturable):
    description = "the same step"


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(Plain, None), (Capturable, ()), (ChangedStep, None), (ChangedAfterwards, None), (OnlyDescribed, ())],
)
def test_a_subclass_with_another_step_is_captured_only_if_it_says_so(stage, expected):
    assert stage("stage", None, None).capture_key(0.0) == expected
