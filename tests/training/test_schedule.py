"""The learning rate of each epoch against PyTorch's schedulers."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR

from promptcal.config.schema import OptimConfig
from promptcal.errors import ConfigError
from promptcal.methods import load_config
from promptcal.training.schedule import learning_rate


def rates(settings, epochs):
    return [learning_rate(settings, epoch, epochs) for epoch in range(epochs)]


def rates_of(scheduler, lr, epochs):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule, found = scheduler(optimiser), []
    for _ in range(epochs):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return found


@pytest.mark.parametrize("epochs", [7, 200])
def test_cosine(epochs):
    expected = rates_of(lambda o: CosineAnnealingLR(o, T_max=epochs, eta_min=1e-4), 0.1, epochs)
    assert rates(OptimConfig(lr=0.1, min_lr=1e-4), epochs) == pytest.approx(expected)


@pytest.mark.parametrize("milestones", [(140, 180), (170,), (5, 5), ()])
def test_steps(milestones):
    settings = OptimConfig(lr=0.03, schedule="steps", milestones=milestones)
    expected = rates_of(lambda o: MultiStepLR(o, milestones=list(milestones), gamma=0.1), 0.03, 200)
    assert rates(settings, 200) == pytest.approx(expected)


def test_a_warm_up_and_then_the_cosine():
    """As in UNO: linear from the lowest rate to the highest in 10 epochs, then the cosine over the other 190."""

    def scheduler(optimiser):
        warmup = LinearLR(optimiser, start_factor=0.01, total_iters=9)
        return SequentialLR(optimiser, [warmup, CosineAnnealingLR(optimiser, T_max=190, eta_min=1e-3)], milestones=[10])

    found = rates(OptimConfig(lr=0.1, min_lr=1e-3, warmup_epochs=10), 200)
    assert found == pytest.approx(rates_of(scheduler, 0.1, 200), rel=1e-5)
    assert (found[0], found[9], found[10]) == pytest.approx((1e-3, 0.1, 0.1))


def test_a_warm_up_and_then_steps_counted_from_the_start():
    settings = OptimConfig(lr=0.1, min_lr=0.0, schedule="steps", milestones=(4,), warmup_epochs=3)
    assert rates(settings, 6) == pytest.approx([0.0, 0.05, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_warm_up_longer_than_the_training_or_of_one_epoch(epochs):
    assert rates(OptimConfig(lr=0.2, min_lr=0.1, warmup_epochs=3), epochs) == pytest.approx([0.1, 0.15, 0.2][:epochs])
    assert rates(OptimConfig(lr=0.2, min_lr=0.1, warmup_epochs=1), epochs)[0] == 0.1


@pytest.mark.parametrize(
    "wrong", ["milestones=[0]", "milestones=[1.5]", "milestones=3", "schedule=line", "warmup_epochs=-1"]
)
def test_a_wrong_schedule_is_rejected_by_name(wrong):
    with pytest.raises(ConfigError, match=f"optim.{wrong.partition('=')[0]}"):
        load_config(values={"n_classes": 4}, overrides=[f"optim.{wrong}"])
