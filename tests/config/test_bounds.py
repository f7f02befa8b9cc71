"""Every number in a config has bounds, so that a slip of the keyboard is one sentence instead of a full memory."""

import types
from typing import Annotated, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from promptcal import api
from promptcal.data import ImageSet
from promptcal.data.loading import load_images
from promptcal.errors import ConfigError
from promptcal.methods import METHODS, load_config
from promptcal.models import PromptedViT
from promptcal.runtime import free_memory
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
    with pytest.raises(ConfigError, match="not enough memory.*lower data.batch_size"), explain_memory_errors():
        raise error
    with pytest.raises(RuntimeError, match="shapes"), explain_memory_errors():
        raise RuntimeError("shapes do not fit")


LARGE = {  # settings that each are within their bounds, and the size that they have together
    "batch": (("data.batch_size=65536", "model.image_size=2048"), "data.batch_size and model.image_size"),
    "memory": (("affinity.memory=1000000", "affinity.epochs=100000"), "affinity.memory"),
    "heads": (("model.head_bottleneck=16384", "model.head_prototypes=4194304"), "the sizes of the heads"),
    "hidden": (("model.head_hidden=65536", "model.head_bottleneck=16384"), "the sizes of the heads"),
}


@pytest.mark.parametrize("what", LARGE)
def test_sizes_are_compared_with_the_memory_before_they_are_allocated(what, tmp_path, small_set, monkeypatch):
    monkeypatch.setattr(free_memory, "free_host_memory", lambda: 8.0 * 2**30)
    settings, named = LARGE[what]
    with pytest.raises(ConfigError, match=f"{named}.*: this size needs at least [0-9,]+ GB of memory, but there are 8"):
        api.fit(
            images=small_set[0], labels=small_set[2], n_classes=4, output=tmp_path / "run", preset="quick",
            overrides=["model.backbone=vit_tiny_patch4_32.promptcal", *settings], progress=False,
        )  # fmt: skip
    assert not (tmp_path / "run").exists() or not (tmp_path / "run" / "model.safetensors").exists()


def test_a_memory_that_never_fills_is_allowed(pretrained_network):
    config = load_config(values={"n_classes": 4}, overrides=["affinity.memory=1000000", "affinity.epochs=1"])
    tiny = load_config(values={"n_classes": 4}, overrides=["model.backbone=vit_tiny_patch4_32.promptcal"])
    vit = pretrained_network(tiny).vit
    needs = METHODS["promptcal"](config).memory_needs(vit, 48, 1)["affinity.memory"]
    assert needs == 4 * (1_000_000 * vit.dim + (2 * (48 + 128) + 2 * 128) ** 2)


def test_images_that_do_not_fit_into_memory_are_refused(small_set, monkeypatch, tmp_path):
    monkeypatch.setattr(free_memory, "free_host_memory", lambda: 1000.0)
    with pytest.raises(ConfigError, match="data.store=memory .*this size needs at least"):
        load_images(
            ImageSet.of(small_set[0]), 32, store="memory", cache=None, run_parent=tmp_path, skip_unreadable=False,
            on_progress=lambda done: None,
        )  # fmt: skip


def test_more_trained_blocks_than_the_backbone_has_are_refused():
    with pytest.raises(ConfigError, match="train_blocks must lie between 0 and 6, not 99"):
        PromptedViT("vit_tiny_patch4_32.promptcal", train_blocks=99, pretrained=False)
