"""What the published figures were made with, and which of these conditions a run does not meet."""

from promptcal.config import Config, flatten
from promptcal.config.layers import Preset
from promptcal.methods import load_config

PUBLISHED_BACKBONE = "vit_base_patch16_224.dino"
_GENERIC_IMAGES = "warmup.generic_images"
# Settings that may differ: where and how fast a run is computed, and more seeds of k-means.
_MAY_DIFFER = {"seed", "device", "precision", "compile", "deterministic", "tensorboard"}
_MAY_DIFFER |= {"model.weights", "data.store", "data.cache", "clustering.repeats", _GENERIC_IMAGES}


def unmet_conditions(config: Config, preset: Preset) -> list[str]:
    """The conditions of the published figures that a run with ``config`` does not meet; ``preset`` is the benchmark's.

    The conditions are the published protocol and backbone, the images of the distillation, and the method's settings.
    """
    if config.protocol != "published":
        return ["the protocol is not the published one (--protocol published)"]
    values = {"n_classes": config.n_classes, "method": config.method, "protocol": "published"}
    wanted = flatten(load_config(preset=preset, values=values).model_dump()) | {"model.backbone": PUBLISHED_BACKBONE}
    given = flatten(config.model_dump())
    differing = [key for key in wanted if given[key] != wanted[key] and key not in _MAY_DIFFER]
    unmet = [f"{key} is {given[key]}, not {wanted[key]}" for key in differing if not key.startswith("estimation.")]
    if _GENERIC_IMAGES in given and given[_GENERIC_IMAGES] is None:
        unmet.append("the distillation of stage 1 is missing (--generic-images)")
    return unmet
