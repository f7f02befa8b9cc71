"""Methods by name: built-in, registered, and from entry points of other packages."""

from importlib.metadata import EntryPoint

import pytest

from promptcal.errors import ConfigError
from promptcal.methods import METHODS, load_config, register_method
from promptcal.methods.base import Method
from promptcal.methods.gcd import GCD
from promptcal.runtime import plugins


@pytest.fixture
def entry_points(monkeypatch):
    """``entry_points(name="module:attribute")``: as if an installed package declared them."""
    monkeypatch.setattr(METHODS, "_registered", dict(METHODS._registered))

    def declare(**points):
        found = {name: EntryPoint(name, value, METHODS.group) for name, value in points.items()}
        monkeypatch.setattr(plugins, "entry_points_of", lambda group: found)

    return declare


def test_every_built_in_method_has_its_name_and_loads_its_config():
    for name in METHODS.names():
        assert issubclass(METHODS[name], Method)
        assert METHODS[name].name == name
        config = load_config(values={"n_classes": 4, "method": name})
        assert type(config) is METHODS[name].config_class
        assert config.model.prompts == (5 if name.startswith("promptcal") else 0)


def test_an_unknown_name_is_an_error_that_lists_the_names(entry_points):
    entry_points(other="promptcal.methods.gcd:GCD")
    with pytest.raises(ConfigError, match=r"there is no method 'magic'; choose one of promptcal, .*kmeans, .*other$"):
        load_config(values={"n_classes": 4, "method": "magic"})


def test_an_entry_point_is_a_method_like_any_other(entry_points):
    entry_points(other="promptcal.methods.gcd:GCD")
    assert METHODS["other"] is GCD
    assert "other" in METHODS
    assert METHODS.names()[-1] == "other"


@pytest.mark.parametrize("value", ["no_such_package_anywhere:Method", "promptcal.methods.gcd:NoSuchClass"])
def test_an_entry_point_that_fails_to_load_is_named(entry_points, value):
    entry_points(broken=value)
    with pytest.raises(ConfigError, match=rf"'broken' cannot be loaded from {value} \(.*Error.*uninstall that package"):
        load_config(values={"n_classes": 4, "method": "broken"})


def test_a_registered_class_is_found_by_its_name(entry_points):
    entry_points()

    @register_method
    class Other(GCD):
        name = "other"

    assert METHODS["other"] is Other
    config = load_config(values={"n_classes": 4, "method": "other"}, overrides=["optim.epochs=7"])
    assert Other(config).epochs() == {"other": 7}
