"""The settings that a fit of the user's own images starts from, below everything that the user names.

A benchmark, a preset and the published protocol start from the published settings instead.
"""

from typing import Any

from promptcal.config import Config, Layers
from promptcal.methods import METHODS
from promptcal.runtime.device import choose_device

# DINOv2 with registers, by type of device; on a CPU, ViT-B would take four times as long.
BACKBONES = {"cpu": "vit_small_patch14_reg4_dinov2.lvd142m"}
BACKBONE = "vit_base_patch14_reg4_dinov2.lvd142m"
IMAGE_SIZE = 224  # 16 x 16 patches; with the 518 px of its training, a step would take over five times as long


def fit_defaults(layers: Layers) -> dict[str, Any]:
    """A strong current backbone, and the variant of the method that did best in our own runs (results/details.md)."""
    defaults: dict[str, Any] = {}
    if not layers.names_setting("model", "backbone"):
        device = choose_device(str(layers.chosen("device", Config.model_fields["device"].default)))
        defaults["model"] = {"backbone": BACKBONES.get(device.type, BACKBONE), "image_size": IMAGE_SIZE}
    if not layers.names_setting("variant"):
        defaults["variant"] = METHODS[layers.method].fit_variant
    return defaults
