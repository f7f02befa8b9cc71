"""Whatever value a setting is given, it is accepted, or rejected with the name of the setting."""

import math
import typing

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from promptcal.errors import ConfigError
from promptcal.methods import load_config, read_config
from promptcal.methods.promptcal.settings import PromptCALConfig
from promptcal.runtime.safe_yaml import read_yaml


def is_section(kind):
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def fields(section=PromptCALConfig, prefix=()):
    """Every setting by its path, and the sections themselves."""
    for name, field in section.model_fields.items():
        yield (*prefix, name), field.annotation
        if is_section(field.annotation):
            yield from fields(field.annotation, (*prefix, name))


FIELDS = dict(fields())
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 300)
    | st.floats()
    | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e308, -1, 10**400, "auto", "none", "paper", "official"])
    | st.text(max_size=12)
    | st.binary(max_size=4)
    | st.dates()
)
VALUES = st.recursive(
    PLAIN, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), v, max_size=3)
)


def with_value(path, value):
    for part in reversed(path):
        value = {part: value}
    return {"n_classes": 5, **value}


def attempt(load):
    """A config, or None and the message of the error; any other exception is passed on."""
    try:
        return load(), ""
    except ConfigError as error:
        return None, str(error)


def check(path, value):
    """Whether a setting takes the value or it is rejected by name."""
    config, message = attempt(lambda: load_config(values=with_value(path, value)))
    if config is None:
        # an error of several settings together names these instead
        together = ("model.prompts", "affinity.semicl", "supervised_prompts", "epochs")
        assert path[-1] in message or any(name in message for name in together)
        assert len(message) < 4000
        return
    numbers = [n for section in config.model_dump().values() if isinstance(section, dict) for n in section.values()]
    assert all(math.isfinite(n) for n in numbers if isinstance(n, float))
    assert read_config(config.to_yaml()) == config


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
@settings(max_examples=12, deadline=None)
@given(value=VALUES)
def test_any_value_of_any_setting_is_accepted_or_rejected_by_name(path, value):
    check(path, value)


NUMBERS = [math.nan, math.inf, -math.inf, -1, -1e-9, 10**400, 1e308]


@pytest.mark.parametrize("value", [*NUMBERS, True, None, "", "x", b"x", [], [1], {}, {"a": 1}], ids=str)
def test_special_values_of_any_setting_are_accepted_or_rejected_by_name(value):
    for path in FIELDS:
        check(path, value)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.sampled_from([p[0] for p in FIELDS]) | st.text(max_size=8) | st.integers(), VALUES, max_size=4)
)
def test_any_mapping_is_a_config_or_rejected(values):
    config, message = attempt(lambda: load_config(values=values))
    assert message if config is None else config.n_classes >= 1


@settings(max_examples=100, deadline=None)
@given(
    path=st.sampled_from([(), *(path for path, kind in FIELDS.items() if is_section(kind))]), key=st.text(max_size=9)
)
def test_an_unknown_key_is_rejected_in_any_section(path, key):
    known = FIELDS[path].model_fields if path else PromptCALConfig.model_fields
    if key not in known:
        with pytest.raises(ConfigError, match="has no setting|is of an earlier version"):
            load_config(values=with_value((*path, key), 1))


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_any_text_is_the_yaml_of_a_setting_or_rejected(text):
    for key in ("seed", "affinity.k"):
        config, message = attempt(lambda key=key: load_config(values={"n_classes": 5}, overrides=[f"{key}={text}"]))
        assert message if config is None else config.n_classes == 5


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=5), v, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(JSON_LIKE)
def test_yaml_is_read_like_the_safe_loader_reads_it(value):
    text = yaml.safe_dump(value)
    assert read_yaml(text) == yaml.safe_load(text) == value


def test_aliases_count_with_all_that_they_repeat():
    def aliases(levels):
        lines = ["a0: &a0 [1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels))]
        return "\n".join(lines)

    read = read_yaml(aliases(4))
    assert sum(len(inner) for ten in read["a3"] for hundred in ten for inner in hundred) == 2000
    with pytest.raises(ValueError, match="too many values"):
        read_yaml(aliases(12))


def test_every_setting_has_a_type_that_these_tests_cover():
    plain = {int, float, bool, str, type(None)}
    for path, kind in FIELDS.items():
        parts, origin = set(typing.get_args(kind)) or {kind}, typing.get_origin(kind)
        assert is_section(kind) or origin in (typing.Literal, tuple) or parts <= plain, path
