"""Weights from a local file, whatever key names they came with, converted as they are loaded.

Understood: timm, DINO, iBOT and DINOv2 backbones, the published PromptCAL checkpoints, and promptcal's own files.
Files are read as safetensors or with ``weights_only``: nothing in them can run.
"""

import argparse
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as convert_for_eva
from timm.models.vision_transformer import checkpoint_filter_fn as convert_for_vit
from torch import Tensor

from promptcal.errors import WeightsError

_WRAPPERS = ("teacher", "state_dict", "model", "student", "model_state_dict")
_PREFIXES = ("module.", "_orig_mod.", "vit.", "backbone.", "encoder.")
# parts of other models' checkpoints that a backbone has no use for
_LEFT_OUT = re.compile(r"^(head|heads|fc|head_dist|masked_embed|mask_token|dino_head|ibot_head|pre_logits|mlp_head)\b")


def load_weights(model: Any, path: str | Path) -> None:
    """Load a local weight file into a ``PromptedViT`` or a plain timm ViT, converting its key names.

    Prompts in the file are loaded into a ``PromptedViT``; a file without prompts leaves them as they are.
    """
    path = Path(path)
    state = _unwrap(_read(path), path)
    prompts = _take_prompts(state)
    if prompts is not None:
        _check_prompts(model, prompts, path)
    backbone: Any = getattr(model, "backbone", model)
    _load_backbone(backbone, state, path)
    if prompts is not None:
        with torch.no_grad():
            model.prompts.copy_(prompts)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise WeightsError(f"the weight file {path} does not exist; check the path")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # DINO keeps its arguments beside the weights
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise WeightsError(
            f"{path} is not a readable weight file ({_first_line(error)}); give a .safetensors file or a "
            "PyTorch .pth that holds only tensors"
        ) from error
    if not isinstance(loaded, dict):
        raise WeightsError(f"{path} holds a {type(loaded).__name__}, not a state dict; save model.state_dict() instead")
    return loaded


def _unwrap(loaded: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """The flat state dict inside a checkpoint, common prefixes taken off."""
    while not any(isinstance(v, Tensor) for v in loaded.values()):
        inner = next((loaded[k] for k in _WRAPPERS if isinstance(loaded.get(k), dict)), None)
        if inner is None:
            raise WeightsError(f"{path} holds no weights under any of {', '.join(_WRAPPERS)}; is it a ViT checkpoint?")
        loaded = inner
    state = {k: v for k, v in loaded.items() if isinstance(v, Tensor)}
    stripping = True
    while stripping:
        stripping = False
        for prefix in _PREFIXES:
            if any(k.startswith(prefix) for k in state):
                # a prefix on the backbone only: what does not carry it is a head, dropped below, or prompts
                state = {k.removeprefix(prefix): v for k, v in state.items()}
                stripping = True
    # DINOv2's training checkpoints group blocks into chunks: blocks.CHUNK.INDEX.rest
    return {re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", k): v for k, v in state.items()}


def _take_prompts(state: dict[str, Tensor]) -> Tensor | None:
    """Remove the prompts from ``state``; the published checkpoints' rows for them in ``pos_embed`` go too."""
    if "prompts" in state:
        return state.pop("prompts")
    if "prompt_tokens" not in state:
        return None
    prompts = state.pop("prompt_tokens").clone()
    n = prompts.shape[1]
    positions = state["pos_embed"]
    # zero in the published files; added here so that any other value would count as it did there
    prompts[0] += positions[0, 1 : 1 + n]
    state["pos_embed"] = torch.cat([positions[:, :1], positions[:, 1 + n :]], dim=1)
    return prompts


def _load_backbone(backbone: Any, state: dict[str, Tensor], path: Path) -> None:
    state = {k: v.float() for k, v in state.items()}
    expected = backbone.state_dict()
    try:
        if not isinstance(backbone, Eva) and "mask_token" not in state and "register_tokens" in state:
            state["mask_token"] = torch.zeros(1)  # the mark timm knows DINOv2 by
        convert = convert_for_eva if isinstance(backbone, Eva) else convert_for_vit
        state = convert(state, backbone)
    except (RuntimeError, KeyError, IndexError, AttributeError, AssertionError, ValueError) as error:
        raise WeightsError(
            f"{path} does not fit {type(backbone).__name__} ({_first_line(error)}); it is of another architecture"
        ) from error
    state = {k: v for k, v in state.items() if k in expected or not _LEFT_OUT.match(k)}
    wrong_shape = [k for k, v in state.items() if k in expected and v.shape != expected[k].shape]
    if wrong_shape:
        key = wrong_shape[0]
        raise WeightsError(
            f"{path} does not fit {type(backbone).__name__}: {key} is {list(state[key].shape)} in the file and "
            f"{list(expected[key].shape)} in the model; choose the backbone the file was made for"
        )
    missing = [k for k in expected if k not in state]
    unexpected = [k for k in state if k not in expected]
    if missing or unexpected:
        raise WeightsError(_mismatch(path, type(backbone).__name__, missing, unexpected))
    backbone.load_state_dict(state)


def _check_prompts(model: Any, prompts: Tensor, path: Path) -> None:
    own = getattr(model, "prompts", None)
    if own is None or own.shape != prompts.shape:
        have = "none" if own is None else f"{own.shape[1]} in each of {own.shape[0]}"
        raise WeightsError(
            f"{path} has {prompts.shape[1]} prompts in each of {prompts.shape[0]} blocks and the model {have}; "
            f"build PromptedViT(..., prompts={prompts.shape[1]}) on the backbone the file was made for"
        )


def _mismatch(path: Path, model: str, missing: list[str], unexpected: list[str]) -> str:
    parts = [
        f"{len(keys)} {what} (such as {keys[0]})"
        for keys, what in ((missing, "of its weights are missing"), (unexpected, "are unknown to it"))
        if keys
    ]
    return f"{path} does not fit {model}: {' and '.join(parts)}; choose the backbone the file was made for"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
