"""Loads weights from local files: timm, DINO, iBOT, DINOv2, DINOv3, MAE, CLIP, published PromptCAL and own files.

Files are read as safetensors or with ``weights_only``, so they cannot execute code.
"""

import argparse
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as convert_for_eva
from timm.models.vision_transformer import checkpoint_filter_fn as convert_for_vit
from torch import Tensor

from promptcal.errors import WeightsError

_WRAPPERS = ("teacher", "state_dict", "model", "student", "model_state_dict")
_PREFIXES = ("module.", "_orig_mod.", "vit.", "backbone.", "encoder.")
# parts of checkpoints that a backbone does not use
_UNUSED_PARTS = re.compile(
    r"^(head|heads|fc|head_dist|masked_embed|mask_token|dino_head|ibot_head|pre_logits|mlp_head|decoder\w*)\b"
)


def load_weights(model: Any, path: str | Path) -> None:
    """Load a local weight file into a ``PromptedViT`` or a plain timm ViT, converting its key names.

    Prompts in the file are loaded into a ``PromptedViT``; without prompts in the file, they stay unchanged.
    """
    path = Path(path)
    state = _unwrap(_read(path), path)
    prompts = _pop_prompts(state, path)
    if prompts is not None:
        _check_prompts(model, prompts, path)
    _load_backbone(getattr(model, "backbone", model), state, path)
    if prompts is not None:
        with torch.no_grad():
            model.prompts.copy_(prompts)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise WeightsError(f"the weight file {path} does not exist; check the path")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # DINO stores its arguments with the weights
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many kinds of errors
        raise WeightsError(
            f"{path} is not a readable weight file ({_explain(error)}); give a .safetensors file or a "
            "PyTorch .pth that holds only tensors"
        ) from error
    if not isinstance(loaded, dict):
        raise WeightsError(f"{path} holds a {type(loaded).__name__}, not a state dict; save model.state_dict() instead")
    return loaded


def _unwrap(loaded: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """The flat state dict inside a checkpoint, without common prefixes."""
    while wrapped := [loaded[k] for k in _WRAPPERS if isinstance(loaded.get(k), dict)]:
        loaded = wrapped[0]
    state = {k: v for k, v in loaded.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not state:
        raise WeightsError(f"{path} holds no weights, nor under {', '.join(_WRAPPERS)}; is it a ViT checkpoint?")
    while prefix := next((p for p in _PREFIXES if any(k.startswith(p) for k in state)), None):
        # keys without the backbone's prefix are heads, which are dropped below, or prompts
        state = {k.removeprefix(prefix): v for k, v in state.items()}
    # DINOv2's training checkpoints group blocks into chunks: blocks.CHUNK.INDEX.rest
    return {re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", k): v for k, v in state.items()}


def _pop_prompts(state: dict[str, Tensor], path: Path) -> Tensor | None:
    """Remove the prompts from ``state``, and their rows of ``pos_embed`` in the published checkpoints."""
    key = next((k for k in ("prompts", "prompt_tokens") if k in state), None)
    if key is None:
        return None
    prompts = state.pop(key)
    if prompts.ndim != 3:
        raise WeightsError(
            f"{path} has {key} of shape {list(prompts.shape)} where blocks x prompts x width was expected; "
            "is it a PromptCAL checkpoint?"
        )
    if key == "prompts":
        return prompts
    n, width = prompts.shape[1:]
    positions = state.get("pos_embed", torch.empty(0))
    if positions.ndim != 3 or positions.shape[1] < n + 2 or positions.shape[2] != width:
        raise WeightsError(
            f"{path} has a pos_embed of shape {list(positions.shape)} without rows for its {n} prompts; "
            "is it a published PromptCAL checkpoint?"
        )
    state["pos_embed"] = torch.cat([positions[:, :1], positions[:, 1 + n :]], dim=1)
    # these rows are zero in the published files; other values would have been added to the prompts
    return torch.cat([prompts[:1] + positions[:, 1 : 1 + n], prompts[1:]])


def _load_backbone(backbone: Any, state: dict[str, Tensor], path: Path) -> None:
    state = {k: v.float() for k, v in state.items()}
    expected = backbone.state_dict()
    patches = state.get("patch_embed.proj.weight")
    if patches is not None and patches.ndim == 4:  # timm would silently resample another patch size
        _require_shapes({"patch_embed.proj.weight": patches}, expected, backbone, path)
    dinov2 = "register_tokens" in state or any(".mlp.w12." in k for k in state)
    if dinov2 and not isinstance(backbone, Eva):
        state.setdefault("mask_token", torch.zeros(1))  # timm recognises DINOv2 by this key
    convert = convert_for_eva if isinstance(backbone, Eva) else convert_for_vit
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # timm prints messages about unused biases of DINOv3
            state = convert(state, backbone)
    except (RuntimeError, KeyError, IndexError, TypeError, AttributeError, AssertionError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        model = type(backbone).__name__
        raise WeightsError(f"{path} does not fit {model} ({reason}); it has another architecture") from error
    # a classifier is loaded if it fits, else ignored; it is never required
    state = {
        k: v for k, v in state.items() if not _UNUSED_PARTS.match(k) or (k in expected and v.shape == expected[k].shape)
    }
    _require_shapes(state, expected, backbone, path)
    missing = [k for k in expected if k not in state and not _UNUSED_PARTS.match(k)]
    unexpected = [k for k in state if k not in expected]
    problems = [f"{len(missing)} of its weights are missing (such as {missing[0]})"] if missing else []
    problems += [f"{len(unexpected)} are unknown to it (such as {unexpected[0]})"] if unexpected else []
    if problems:
        raise _mismatch(path, backbone, " and ".join(problems))
    backbone.load_state_dict(state, strict=False)


def _require_shapes(state: dict[str, Tensor], expected: dict[str, Tensor], backbone: Any, path: Path) -> None:
    for key, value in state.items():
        if key in expected and value.shape != expected[key].shape:
            shapes = f"{list(value.shape)} in the file and {list(expected[key].shape)} in the model"
            raise _mismatch(path, backbone, f"{key} is {shapes}")


def _mismatch(path: Path, backbone: Any, problem: str) -> WeightsError:
    choose = "choose the backbone the file was made for"
    return WeightsError(f"{path} does not fit {type(backbone).__name__}: {problem}; {choose}")


def _check_prompts(model: Any, prompts: Tensor, path: Path) -> None:
    own = getattr(model, "prompts", None)
    if own is None or own.shape != prompts.shape:
        have = "none" if own is None else f"{own.shape[1]} in each of {own.shape[0]}"
        raise WeightsError(
            f"{path} has {prompts.shape[1]} prompts in each of {prompts.shape[0]} blocks and the model {have}; "
            f"build PromptedViT(..., prompts={prompts.shape[1]}) on the backbone the file was made for"
        )


def _explain(error: Exception) -> str:
    """The reason, without PyTorch's advice to load the file unsafely."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f"it would call {named[1]}" if named else "it is damaged or not a weight file"
