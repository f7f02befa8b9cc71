"""Vision transformers by name: timm's, and a tiny one included in the package."""

import contextlib
import difflib
import socket
import time
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import timm
from huggingface_hub import constants
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from promptcal.errors import WeightsError
from promptcal.models.weights import load_weights

EMBEDDED_BACKBONE = "vit_tiny_patch4_32.promptcal"
_ATTEMPTS, _PAUSE, _TIMEOUT = 2, 2.0, 5.0  # of connecting to the hub; the last two in seconds


class Preprocessing(NamedTuple):
    """Input size and normalisation of a backbone."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def create_backbone(name: str, *, image_size: int | None = None, pretrained: bool = True) -> Any:
    """A timm ViT by name, at ``image_size`` pixels if given; ``pretrained`` downloads its weights.

    ``vit_tiny_patch4_32.promptcal`` is included in the package and needs no download.
    """
    if name == EMBEDDED_BACKBONE:
        return _embedded(image_size, pretrained)
    _require_known(name)
    sizes = {} if image_size is None else {"img_size": image_size}
    try:
        model = timm.create_model(name, pretrained=False, num_classes=0, **sizes)
    except (TypeError, AssertionError, RuntimeError) as error:
        # either not a ViT (no img_size) or an unsupported size; building it without the size shows which
        require_vit(timm.create_model(name, pretrained=False, num_classes=0), name)
        raise WeightsError(f"{name} cannot be built at {image_size} px: {error}") from error
    require_vit(model, name)
    _require_one_patch(model, name, image_size)
    if not pretrained:
        return model
    unreachable: str | None = None
    try:
        with offline_if_unreachable() as unreachable:
            return timm.create_model(name, pretrained=True, num_classes=0, **sizes)
    except Exception as error:  # hub, network and file errors share no base class
        reason = unreachable or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WeightsError(
            f"the weights of {name} could not be downloaded ({reason.rstrip('.')}); connect to the network once, "
            "or point HF_HOME at a filled Hugging Face cache, or give a local file (--set model.weights=FILE), or use "
            "`promptcal fit --preset quick`, whose small backbone is included"
        ) from error


def require_vit(model: Any, name: str | None = None) -> None:
    """Raise an error unless ``model`` is a timm ViT or EVA with a class token, which prompts need."""
    label = name or type(model).__name__
    if not isinstance(model, VisionTransformer | Eva):
        problem = "is not a vision transformer that supports prompts; choose a timm VisionTransformer or Eva model"
    elif model.cls_token is None:
        problem = "has no class token, which the method clusters; choose a ViT with a class token"
    else:
        return
    raise WeightsError(f"{label} {problem} (for example vit_base_patch16_224.dino)")


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[str | None]:
    """Context in which the hub's client uses only its cache if the hub cannot be reached; yields the reason, or None.

    Without it the client retries for most of a minute before it fails.
    """
    was_offline = constants.HF_HUB_OFFLINE
    reason = None if was_offline else _connection_error()
    constants.HF_HUB_OFFLINE = was_offline or reason is not None
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _connection_error() -> str | None:
    """The reason why no connection is possible; None if one is, or if a proxy is configured."""
    if {"http", "https", "all"} & set(getproxies()):
        return None
    hub, reason = urlsplit(constants.ENDPOINT), ""
    address = (hub.hostname or "", hub.port or (80 if hub.scheme == "http" else 443))
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE if attempt else 0)
        try:
            socket.create_connection(address, timeout=_TIMEOUT).close()
            return None
        except OSError as error:
            reason = error.strerror or str(error)
    return f"{address[0]} cannot be reached: {reason}"


def preprocessing(backbone: Any) -> Preprocessing:
    """Input size and normalisation of a backbone's training (ImageNet's if it does not specify them)."""
    config = getattr(backbone, "pretrained_cfg", None) or {}
    size = backbone.patch_embed.img_size
    return Preprocessing(
        image_size=size[0] if isinstance(size, tuple) else int(size),
        mean=tuple(config.get("mean", IMAGENET_DEFAULT_MEAN)),
        std=tuple(config.get("std", IMAGENET_DEFAULT_STD)),
    )


def _require_known(name: str) -> None:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        wrong, known = architecture, [*timm.list_models("*vit*"), *timm.list_models("*eva*"), EMBEDDED_BACKBONE]
    elif tag and name not in (known := timm.list_models(architecture, include_tags=True)):
        wrong = name
    else:
        return
    close = difflib.get_close_matches(wrong, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else "`timm.list_models()` lists them"
    raise WeightsError(f"timm has no model called {name!r}; {hint}")


def _require_one_patch(model: Any, name: str, image_size: int | None) -> None:
    patch = max(model.patch_embed.patch_size)
    if image_size is not None and image_size < patch:
        raise WeightsError(f"{name} cannot be built at {image_size} px: one of its patches is already {patch} px")


def _embedded(image_size: int | None, pretrained: bool) -> Any:
    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=0)
    model.pretrained_cfg = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
    if pretrained:
        asset = resources.files("promptcal.models") / "assets" / "vit_tiny_patch4_32.safetensors"
        with resources.as_file(asset) as path:
            load_weights(model, path)
    _require_one_patch(model, EMBEDDED_BACKBONE, image_size)
    if image_size is not None and image_size != 32:
        model.set_input_size(img_size=(image_size, image_size))
    return model
