"""What the published figures were made with, and which of these conditions a run does not meet."""

from typing import Any

from promptcal.config import Config, flatten
from promptcal.config.layers import Preset, preset_settings
from promptcal.methods import METHODS, load_config

PUBLISHED_BACKBONE = "vit_base_patch16_224.dino"
GENERIC_IMAGES = "data.generic_images"
NO_DISTILLATION = "the distillation of stage 1 is missing (--generic-images)"
# Settings that may differ: where and how fast a run is computed, and more seeds of k-means.
_MAY_DIFFER = {"seed", "device", "precision", "compile", "deterministic", "tensorboard"}
_MAY_DIFFER |= {"data.store", "data.cache", "clustering.repeats", GENERIC_IMAGES}
_OF_BACKBONE = ("model.backbone", "model.pretrained", "model.weights")


def unmet_conditions(config: Config, preset: Preset, changes: tuple[str, ...] = ()) -> list[str]:
    """The conditions of the published figures that a run with ``config`` does not meet; ``preset`` is the benchmark's.

    The conditions are the published protocol and backbone, the images of the distillation, and the method's settings,
    with the ``changes`` (``a.b=value``) that a row of a table makes to them. A file of weights may hold those of any
    network, so it meets the conditions only if it is one of the changes.
    """
    n_classes = preset_settings(preset).get("n_classes", config.n_classes)
    values = {"n_classes": n_classes, "method": config.method, "protocol": "published"}
    overrides = (f"model.backbone={PUBLISHED_BACKBONE}", *changes)
    wanted = flatten(load_config(preset=preset, values=values, overrides=overrides).model_dump())
    given = flatten(config.model_dump())
    if config.protocol != "published":
        wanted = {key: wanted[key] for key in ("n_classes", *_OF_BACKBONE)}
    differing = [key for key in wanted if given.get(key) != wanted[key] and key not in _MAY_DIFFER]
    unmet = [_difference(key, given.get(key), wanted[key]) for key in differing if not key.startswith("estimation.")]
    if config.protocol != "published":
        unmet.insert(0, "the protocol is not the published one (--protocol published)")
    if METHODS[config.method].uses_generic_images and config.data.generic_images is None:
        unmet.append(NO_DISTILLATION)
    return unmet


def _difference(key: str, given: Any, wanted: Any) -> str:
    if key == "model.weights" and given is not None:
        return f"the weights are from {given}"
    return f"{key} is {given}, not {wanted}"
