"""Public objects describe their arguments and what they return: what `promptcal` exports, and what a page documents."""

import inspect
import re
from dataclasses import is_dataclass

import pytest
from pages import PAGES
from test_code_of_pages import resolve

import promptcal

# Objects that a page documents, and the members that it shows (none: all).
DIRECTIVE = re.compile(r"^::: (\S+)\n(?: +options: \{.*?(?:members: \[([\w, ]+)\].*)?\}\n)?", re.MULTILINE)
DOCUMENTED = {name: members for page in PAGES for name, members in DIRECTIVE.findall(PAGES[page].read_text())}
PUBLIC = sorted({f"promptcal.{name}" for name in promptcal.__all__ if name != "__version__"} | {*DOCUMENTED})
NOT_SHOWN = {"self", "cls"}


def section(docstring, title):
    """The names in a section such as Args, or None if there is no such section."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", f"{inspect.cleandoc(docstring or '')}\n", re.MULTILINE)
    return None if found is None else set(re.findall(r"^    (\w+):", found[1], re.MULTILINE))


def arguments(function):
    return set(inspect.signature(function).parameters) - NOT_SHOWN


def shown_methods(kind, members):
    """Public methods that the package defines for a class, also in its bases; those of ``members``, or all."""
    for base in kind.__mro__:
        if base.__module__.startswith("promptcal."):
            for name, member in vars(base).items():
                function = getattr(member, "__func__", member)
                is_shown = name in members.split(", ") if members else not name.startswith("_")
                if is_shown and inspect.isfunction(function):
                    yield f"{kind.__name__}.{name}", function


def missing(name, function):
    """What the docstring of a function does not describe."""
    docstring = inspect.getdoc(function)  # of an overridden method if it has none
    if not docstring:
        return f"{name} has no docstring"
    undocumented = arguments(function) - (section(docstring, "Args") or set())
    if undocumented:
        return f"{name} does not describe {', '.join(sorted(undocumented))}"
    gives = inspect.signature(function).return_annotation
    if arguments(function) and gives not in (None, "None", inspect.Signature.empty) and "Returns:" not in docstring:
        return f"{name} does not say what it returns"
    return None


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_is_described(name):
    found = resolve(name)
    if inspect.ismodule(found):
        members = [(key, value) for key, value in vars(found).items() if getattr(value, "__module__", "") == name]
        assert all(value.__doc__ for key, value in members if not key.startswith("_"))
    elif inspect.isclass(found):
        assert found.__doc__
        fields = issubclass(found, tuple) or is_dataclass(found)
        if fields:
            names = set(getattr(found, "_fields", None) or found.__dataclass_fields__)
            assert names <= (section(found.__doc__, "Attributes") or section(found.__doc__, "Args") or set())
        elif not issubclass(found, Exception):
            assert arguments(found) <= (section(found.__doc__, "Args") or set())
        if name in DOCUMENTED and not fields:
            assert [
                fault for key, method in shown_methods(found, DOCUMENTED[name]) if (fault := missing(key, method))
            ] == []
    else:
        assert missing(name, found) is None


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isroutine(resolve(name))])
def test_arguments_have_the_names_of_python(name):
    without_commands = re.sub("`promptcal .+?`", "", inspect.getdoc(resolve(name)))
    assert re.findall(r"(?<![\w-])--[a-z]\S*", without_commands) == []
