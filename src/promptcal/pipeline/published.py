"""What the published figures were made with, and which of these conditions a run does not meet."""

from promptcal.config import Config, flatten
from promptcal.config.layers import Preset
from promptcal.methods import METHODS, load_config

PUBLISHED_BACKBONE = "vit_base_patch16_224.dino"
GENERIC_IMAGES = "data.generic_images"
NO_DISTILLATION = "the distillation of stage 1 is missing (--generic-images)"
# Settings that may differ: where and how fast a run is computed, and more seeds of k-means.
_MAY_DIFFER = {"seed", "device", "precision", "compile", "deterministic", "tensorboard"}
_MAY_DIFFER |= {"model.weights", "data.store", "data.cache", "clustering.repeats", GENERIC_IMAGES}


def unmet_conditions(config: Config, preset: Preset, changes: tuple[str, ...] = ()) -> list[str]:
    """The conditions of the published figures that a run with ``config`` does not meet; ``preset`` is the benchmark's.

    The conditions are the published protocol and backbone, the images of the distillation, and the method's settings,
    with the ``changes`` (``a.b=value``) that an ablation makes to them.
    """
    values = {"n_classes": config.n_classes, "method": config.method, "protocol": "published"}
    overrides = (f"model.backbone={PUBLISHED_BACKBONE}", *changes)
    wanted = flatten(load_config(preset=preset, values=values, overrides=overrides).model_dump())
    given = flatten(config.model_dump())
    if config.protocol != "published":
        wanted = {key: wanted[key] for key in ("model.backbone", "model.pretrained")}
    differing = [key for key in wanted if given.get(key) != wanted[key] and key not in _MAY_DIFFER]
    unmet = [f"{key} is {given.get(key)}, not {wanted[key]}" for key in differing if not key.startswith("estimation.")]
    if config.protocol != "published":
        unmet.insert(0, "the protocol is not the published one (--protocol published)")
    if METHODS[config.method].uses_generic_images and config.data.generic_images is None:
        unmet.append(NO_DISTILLATION)
    return unmet
