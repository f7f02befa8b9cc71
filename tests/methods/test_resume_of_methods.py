"""Methods with state besides their weights, or with their own augmentation, are resumed exactly."""

from typing import ClassVar

import pytest
import torch

from promptcal.api import fit
from promptcal.errors import Interrupted
from promptcal.methods import METHODS, register_method
from promptcal.methods.gcd import GCD


@pytest.fixture
def noisy(monkeypatch):
    """A method with its own augmentation and parameter groups."""
    monkeypatch.setattr(METHODS, "_registered", dict(METHODS._registered))

    @register_method
    class NoisyGCD(GCD):
        name = "noisy"
        noise: ClassVar[float] = 0.3

        def augment(self, views, generator):
            return views + self.noise * torch.randn(views.shape, generator=generator)

        def parameter_groups(self, network):
            parameters = network.trained_parameters()
            head = [p for name, p in parameters.items() if name.startswith("heads.")]
            vit = [p for name, p in parameters.items() if not name.startswith("heads.")]
            return [{"params": head}, {"params": vit, "lr_scale": 0.0, "weight_decay": 0.1}]

    return NoisyGCD


@pytest.mark.usefixtures("noisy")
@pytest.mark.parametrize(
    ("method", "stop_at"),
    [
        ("orca", 3),  # between two epochs, before the margin of the second one is measured
        ("orca", 4),  # in the second epoch, whose margin was measured at its start
        ("uno", 2),  # in the first epoch, with losses by head
        ("noisy", 2),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(
    interrupted_at, outcome, tmp_path, small_set, common_settings, method, stop_at
):
    images, _, labels = small_set
    arguments = {
        "images": images, "labels": labels, "n_classes": 4, "method": method, "progress": False,
        "overrides": (*common_settings, "tensorboard=no"), "report": False,
    }  # fmt: skip
    fit(**arguments, output=tmp_path / "whole")
    done = interrupted_at(stop_at)
    with pytest.raises(Interrupted, match="--resume"):
        fit(**arguments, output=tmp_path / "run")
    fit(**arguments, output=tmp_path / "run", resume=True)
    assert len(done) == 6  # nothing was computed twice
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_fit_uses_the_augmentation_and_the_parameter_groups(
    noisy, tmp_path, small_set, common_settings, pretrained_network
):
    images, _, labels = small_set
    losses = {}
    for noise in (0.0, 0.3):
        noisy.noise = noise
        run = fit(
            images=images, labels=labels, n_classes=4, method="noisy", output=tmp_path / str(noise), progress=False,
            overrides=(*common_settings, "tensorboard=no", "selection.by=last"),
        )  # fmt: skip
        losses[noise] = [record["loss"] for record in run.records()]
    assert losses[0.0] != losses[0.3]
    before, after = pretrained_network(run.config).state_dict(), run.network.state_dict()
    changed = {name for name, values in after.items() if not torch.equal(values.cpu(), before[name])}
    assert changed
    assert all(name.startswith("heads.") for name in changed)  # the learning rate of the ViT is 0
