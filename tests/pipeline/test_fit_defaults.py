"""The settings that a fit starts from: our best ones for own images, published ones for benchmarks and presets."""

import numpy as np
import pytest
import torch

from promptcal import fit
from promptcal.discovery.heads import HEADS
from promptcal.errors import ConfigError
from promptcal.methods import resolve
from promptcal.methods.promptcal.settings import RECOMMENDED
from promptcal.pipeline.fit_defaults import BACKBONE, BACKBONES
from promptcal.pipeline.inputs import settings_layers
from promptcal.pipeline.request import FitRequest
from promptcal.run import Run

DINOV2_B, DINOV2_S = BACKBONE, BACKBONES["cpu"]
DINO_B = "vit_base_patch16_224.dino"


def config_of(*overrides, **options):
    return resolve(settings_layers(FitRequest(images="x", output="y", n_classes=3, overrides=overrides, **options)))


@pytest.mark.parametrize(
    ("cuda", "options", "backbone", "image_size", "variant"),
    [
        (True, {}, DINOV2_B, 224, "recommended"),
        (False, {}, DINOV2_S, 224, "recommended"),
        (True, {"device": "cpu"}, DINOV2_S, 224, "recommended"),
        (True, {"backbone": DINO_B}, DINO_B, None, "recommended"),
        (True, {"method": "gcd"}, DINOV2_B, 224, "official"),
        (True, {"preset": "cub"}, DINO_B, None, "official"),
        (True, {"preset": "quick"}, "vit_tiny_patch4_32.promptcal", None, "official"),
        (True, {"benchmark": "cub", "preset": "cub"}, DINO_B, None, "official"),
        (True, {"protocol": "published"}, DINO_B, None, "official"),
    ],
)
def test_own_images_start_from_our_best_settings(monkeypatch, cuda, options, backbone, image_size, variant):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    config = config_of(**options)
    assert (config.model.backbone, config.model.image_size, config.variant) == (backbone, image_size, variant)


def test_the_default_variant_has_the_recommended_values():
    config = config_of()
    assert config.model.train_blocks == RECOMMENDED["model"]["train_blocks"]
    assert config.optim.lr == RECOMMENDED["optim"]["lr"]
    assert config.clustering.readout == "head"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("model.image_size=112",), (112, "recommended")),
        (("variant=official",), (224, "official")),
    ],
)
def test_a_named_setting_wins_over_the_defaults(overrides, expected):
    config = config_of(*overrides)
    assert (config.model.image_size, config.variant) == expected


def test_quick_trains_no_network_but_the_read_out(tmp_path, small_set, common_settings, capsys):
    images, _, labels = small_set
    settings = [s for s in common_settings if not s.startswith("clustering.readout")]
    fit(
        images=images, labels=labels, n_classes=4, quick=True, output=tmp_path / "run", report=False,
        overrides=[*settings, "precision=fp32"],
    )  # fmt: skip
    run = Run(tmp_path / "run", "cpu")
    assert run.config.method == "frozen"
    assert run.directory.results().stages == {}
    assert "No network is trained (--quick)" in capsys.readouterr().err
    found = run.assignments()
    assert set(np.unique(found.stability)) <= {round(i / HEADS, 4) for i in range(HEADS + 1)}  # the share that agrees
    assert (run.predict(images, progress=False).clusters == found.clusters)[labels < 0].all()


def test_quick_and_a_method_that_trains_exclude_each_other():
    with pytest.raises(ConfigError, match="--quick trains nothing, so it cannot use the method gcd"):
        config_of(quick=True, method="gcd")
