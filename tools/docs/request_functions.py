"""A griffe extension: functions of `promptcal.api` whose arguments are the fields of a request."""

import inspect
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import griffe


class RequestFunctions(griffe.Extension):
    """Show the signature and the docstring that such a function has when it is imported."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if not any(str(decorator.value).startswith("_takes_options_of") for decorator in func.decorators):
            return
        function = getattr(import_module(func.parent.path), func.name)
        func.docstring = griffe.Docstring(inspect.getdoc(function) or "", parent=func)
        func.parameters = griffe.Parameters(*map(_parameter, inspect.signature(function).parameters.values()))


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    required = parameter.default is inspect.Parameter.empty
    annotation = parameter.annotation
    return griffe.Parameter(
        parameter.name,
        kind=griffe.ParameterKind.keyword_only,
        annotation=_short(annotation),
        default=None if required else repr(parameter.default),
    )


def _short(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join("None" if kind is NoneType else _short(kind) for kind in get_args(annotation))
    text = annotation.__name__ if annotation in (bool, str, int, float) else str(annotation)
    for long in ("typing.", "os.", "promptcal.pipeline.problem.", "collections.abc."):
        text = text.replace(long, "")
    return text
