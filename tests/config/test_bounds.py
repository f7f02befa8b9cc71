"""Every number in a config has bounds, so that a slip of the keyboard is one sentence instead of a full memory."""

import types
from typing import Annotated, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from promptcal.errors import ConfigError
from promptcal.methods import METHODS, load_config
from promptcal.models import PromptedViT
from promptcal.runtime.device import choose_device, explain_memory_errors


def numbers_of(model, prefix=""):
    """The names of all numeric settings, also of optional numbers and of lists of numbers."""
    for name, field in model.model_fields.items():
        kinds = list(flat(field.annotation))
        if any(kind in (int, float) for kind in kinds):
            yield f"{prefix}{name}", tuple in kinds
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from numbers_of(kind, f"{prefix}{name}.")


def flat(annotation):
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, Annotated, tuple, list):
        yield origin
        for inner in get_args(annotation):
            yield from flat(inner)
    else:
        yield annotation


CASES = sorted({(m, *case) for m in METHODS.names() for case in numbers_of(METHODS[m].config_class)})


def test_the_settings_are_found():
    found = {name for _, name, _ in CASES}
    assert {"data.batch_size", "affinity.k", "optim.milestones", "uno.heads", "n_classes", "optim.lr"} <= found
    assert len(found) > 50


@pytest.mark.parametrize(("method", "name", "is_list"), CASES)
def test_huge_and_negative_numbers_are_refused_by_name(method, name, is_list):
    for value in ("10" + 23 * "0", "1.0e+300", "-1" + 9 * "0", ".inf", ".nan"):
        setting = f"{name}=[{value}]" if is_list else f"{name}={value}"
        with pytest.raises(ConfigError, match=f"the setting '{name}(.0)?' is wrong"):
            load_config(values={"n_classes": 10, "method": method}, overrides=[setting])


@pytest.mark.parametrize(
    "name",
    [
        *("data.batch_size", "model.image_size", "data.resize", "uno.heads", "model.head_prototypes"),
        *("affinity.memory", "affinity.negatives", "model.prompts", "affinity.diffusion_steps", "optim.epochs"),
        *("warmup.epochs", "affinity.epochs", "clustering.n_init", "model.head_hidden", "model.head_bottleneck"),
    ],
)
def test_a_thousand_million_is_too_large_for_a_size(name):
    method = "uno" if name.startswith("uno") else "promptcal"
    with pytest.raises(ConfigError, match=f"the setting '{name}' is wrong: input should be less than or equal to"):
        load_config(values={"n_classes": 10, "method": method}, overrides=[f"{name}=1000000000"])


def test_text_with_a_nul_character_is_refused():
    with pytest.raises(ConfigError, match=r"the setting 'data.cache' is wrong: input should not contain a NUL"):
        load_config(values={"n_classes": 10, "data": {"cache": "a\0b"}})


@pytest.mark.parametrize("name", ["meta", "xla", "hpu", "privateuseone", "nonsense", "cpu:-3", ""])
def test_a_device_without_numbers_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be used here; choose cpu, cuda, mps or auto"):
        choose_device(name)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CPUAllocator: can't allocate memory"), RuntimeError("CUDA out of memory")],
)
def test_a_failed_allocation_names_the_settings(error):
    with pytest.raises(ConfigError, match="not enough memory .*lower data.batch_size"), explain_memory_errors():
        raise error
    with pytest.raises(RuntimeError, match="shapes"), explain_memory_errors():
        raise RuntimeError("shapes do not fit")


def test_more_trained_blocks_than_the_backbone_has_are_refused():
    with pytest.raises(ConfigError, match="train_blocks must lie between 0 and 6, not 99"):
        PromptedViT("vit_tiny_patch4_32.promptcal", train_blocks=99, pretrained=False)
