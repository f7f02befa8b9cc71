"""Whatever a setting is given: it is taken, or refused by name, and nothing else happens."""

import math
import typing

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from promptcal.config.schema import Config, load_config, validate
from promptcal.errors import ConfigError
from promptcal.runtime.safe_yaml import read_yaml


def fields(section=Config, prefix=()):
    """Every setting by its path, sections themselves included."""
    for name, field in section.model_fields.items():
        yield (*prefix, name), field.annotation
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
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


def nested(path, value):
    for part in reversed(path):
        value = {part: value}
    return value


def attempt(make):
    """A config, or None and why there is none; any other exception is passed on."""
    try:
        return make(), ""
    except ConfigError as error:
        return None, str(error)


def finite(config):
    """No number in a config may be one that is none."""

    def numbers(value):
        if isinstance(value, dict):
            return [n for inner in value.values() for n in numbers(inner)]
        return [value] if isinstance(value, float) else []

    return all(map(math.isfinite, numbers(config.model_dump())))


def test_every_setting_is_here():
    assert len(FIELDS) > 90
    assert ("affinity", "k") in FIELDS


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
@settings(max_examples=12, deadline=None)
@given(value=VALUES)
def test_any_value_of_any_setting_is_taken_or_refused_by_name(path, value):
    given_values = {"n_classes": 5, **nested(path, value)}
    config, refusal = attempt(lambda: validate(given_values))
    if config is None:
        assert ".".join(path) in refusal or _depends(refusal)
        assert len(refusal) < 4000
        return
    assert finite(config)
    assert validate(yaml.safe_load(config.to_yaml())) == config  # what is taken can be written down and read again


NUMBERS = [math.nan, math.inf, -math.inf, -1, -1e-9, 10**400, 1e308]


@pytest.mark.parametrize("value", [*NUMBERS, True, None, "", "x", b"x", [], [1], {}, {"a": 1}], ids=str)
def test_special_values_of_any_setting_are_taken_or_refused_by_name(value):
    for path in FIELDS:
        config, refusal = attempt(lambda path=path: validate({"n_classes": 5, **nested(path, value)}))
        assert finite(config) if config is not None else ".".join(path) in refusal or _depends(refusal)


def _depends(message):
    """Whether it is a setting at odds with another, which names both."""
    return any(name in message for name in ("model.prompts", "affinity.semicl", "supervised_prompts", "epochs"))


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.sampled_from([p[0] for p in FIELDS]) | st.text(max_size=8) | st.integers(), VALUES, max_size=4)
)
def test_any_mapping_is_a_config_or_refused(values):
    config, refusal = attempt(lambda: load_config(values=values))
    assert refusal if config is None else config.n_classes >= 1


@settings(max_examples=100, deadline=None)
@given(path=st.sampled_from(sorted(FIELDS)), letters=st.text(min_size=1, max_size=10))
def test_an_unknown_key_is_refused_wherever_it_is(path, letters):
    section = FIELDS[path] if isinstance(FIELDS[path], type) and issubclass(FIELDS[path], BaseModel) else None
    where = path if section else path[:-1]
    known = (section or _at(where)).model_fields
    if letters in known:
        return
    with pytest.raises(ConfigError, match="there is no setting"):
        validate({"n_classes": 5, **nested(where, {letters: 1})} if where else {"n_classes": 5, letters: 1})


def _at(where):
    section = Config
    for part in where:
        section = section.model_fields[part].annotation
    return section


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_any_text_is_yaml_of_settings_or_refused(text):
    for key in ("seed", "affinity.k"):
        config, refusal = attempt(lambda key=key: load_config(values={"n_classes": 5}, overrides=[f"{key}={text}"]))
        assert refusal if config is None else config.n_classes == 5


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=5), v, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(JSON_LIKE)
def test_yaml_is_read_as_the_safe_loader_reads_it(value):
    text = yaml.safe_dump(value)
    assert read_yaml(text) == yaml.safe_load(text) == value


def test_aliases_count_as_often_as_they_stand():
    def aliases(levels):
        lines = ["a0: &a0 [1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels))]
        return "\n".join(lines)

    read = read_yaml(aliases(4))
    assert sum(len(inner) for ten in read["a3"] for hundred in ten for inner in hundred) == 2000
    with pytest.raises(ValueError, match="too many values"):
        read_yaml(aliases(12))


def test_the_type_of_every_setting_is_known_to_this_test():
    """A new kind of setting needs a thought about what it may be given."""
    plain = {int, float, bool, str, type(None)}
    for path, kind in FIELDS.items():
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            continue
        parts = set(typing.get_args(kind)) or {kind}
        assert typing.get_origin(kind) is typing.Literal or parts <= plain, path
