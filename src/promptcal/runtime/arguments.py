"""Checks of the arguments of Python functions by their annotations, so that a wrong type is one clear sentence."""

import errno
import functools
import inspect
import numbers
import os
import reprlib
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from promptcal.errors import ArgumentError
from promptcal.runtime.reading import is_special

_LARGEST = 10**300
_Function = TypeVar("_Function", bound=Callable[..., Any])
_KINDS: dict[Any, tuple[Any, str]] = {  # what an annotation accepts, and its name in a message
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a text"),
    os.PathLike: (os.PathLike, "a path"),
    Mapping: (Mapping, "a mapping"),
    types.NoneType: (types.NoneType, "None"),
}


def checked(function: _Function) -> _Function:
    """A function that raises an `ArgumentError` for arguments of other types, unknown ones and missing ones.

    Functions whose parameters are keyword-only say so if an argument has no name.
    """
    signature = inspect.signature(function)
    called = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*unnamed: Any, **given: Any) -> Any:
        try:
            found = signature.bind(*unnamed, **given).arguments
        except TypeError as error:
            check_names(called, unnamed, given, signature.parameters.values())
            raise ArgumentError(f"{called}: {error}") from error
        _check_types(found, signature)
        return function(*unnamed, **given)

    return call  # type: ignore[return-value]


def check_parameters(estimator: Any) -> None:
    """Reject parameters of an estimator that the annotations of its constructor do not allow."""
    signature = inspect.signature(type(estimator))
    _check_types({name: getattr(estimator, name) for name in signature.parameters}, signature)


def _check_types(given: Mapping[str, Any], signature: inspect.Signature) -> None:
    for name, value in given.items():
        parameter = signature.parameters[name]
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.annotation is not parameter.empty:
            check_argument(name, value, parameter.annotation)


def check_names(
    function: str, unnamed: Sequence[Any], given: Collection[str], parameters: Iterable[inspect.Parameter]
) -> None:
    """Reject arguments without a name, unknown ones and missing ones."""
    known = {parameter.name: parameter for parameter in parameters}
    positional = [name for name, parameter in known.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    named = [name for name in known if name not in positional]
    if len(unnamed) > len(positional) and named:
        raise ArgumentError(f"{function} takes its arguments by name; write {function}({named[0]}=...)")
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArgumentError(f"there is no option {unknown[0]!r}; help() of the function lists them")
    required = [name for name, parameter in known.items() if parameter.default is parameter.empty]
    missing = [name for name in required if name not in given and name not in positional[: len(unnamed)]]
    if missing:
        raise ArgumentError(f"the option {missing[0]!r} is missing; help() of the function describes it")


def check_argument(name: str, value: Any, annotation: Any) -> None:
    """Reject a value that the annotation does not allow, a path that no system can open, and a number that cannot be
    written or converted."""
    if isinstance(value, numbers.Integral) and not -_LARGEST < int(value) < _LARGEST:
        raise ArgumentError(f"{name} must be a number of at most 300 digits")
    if not _fits(value, annotation):
        raise ArgumentError(f"{name} must be {_described(annotation)}, not {_shown(value)}")
    if isinstance(value, str | os.PathLike) and os.PathLike in _origins(annotation):
        check_path(name, value)


def as_list(name: str, values: Any) -> list[Any]:
    """The elements of an iterable; an open file is refused, because its path is meant."""
    if hasattr(values, "read"):
        raise ArgumentError(f"{name} must be given as the path of a file, not as an open file")
    try:
        return list(values)
    except TypeError as error:
        raise ArgumentError(f"{name} must be a path or a list, not {_shown(values)}") from error


def tensor_as_numpy(name: str, tensor: Any) -> Any:
    """The array of a torch tensor on any device; bfloat16 and other short floats become float32."""
    if tensor.is_meta or str(tensor.layout) != "torch.strided":
        raise ArgumentError(f"{name} must be a dense tensor with values, not one of {tensor.layout} on {tensor.device}")
    is_short = tensor.is_floating_point() and tensor.element_size() <= 2
    return (tensor.float() if is_short else tensor).numpy(force=True)


def check_path(name: str, path: Any) -> Path:
    """The path, if the system could open it; whether it exists is not checked."""
    try:
        text = os.fspath(path)
    except TypeError as error:  # its __fspath__ returns anything else
        raise ArgumentError(f"{name} must be a path of text: {error}") from error
    if not isinstance(text, str):
        raise ArgumentError(f"{name} must be a path of text, not of {type(text).__name__}")
    if not text:
        raise ArgumentError(f"{name} must be a path, not an empty text; '.' is the current folder")
    if "\0" in text:
        raise ArgumentError(f"{name} must be a path without NUL characters, not {reprlib.repr(text)}")
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ArgumentError(f"{name} is too long for a path ({len(text)} characters): {text[:60]} ...") from error
    except ValueError as error:  # a surrogate that the file system cannot encode
        raise ArgumentError(f"{name} is no valid path: {text[:60]!a}") from error
    return Path(text)


def check_output_file(path: Any) -> Path:
    """The path of a file that is to be written: its folder must exist, and it must not be a folder itself."""
    file = check_path("output", path)
    if file.is_dir():
        raise ArgumentError(f"the output {file} is a folder; give a file")
    if is_special(file):
        raise ArgumentError(f"the output {file} is a pipe or a device, which would be replaced; give another file")
    if not file.absolute().parent.is_dir():
        raise ArgumentError(f"the folder of the output {file} does not exist; create it first")
    return file


def _shown(value: Any) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def _fits(value: Any, annotation: Any) -> bool:
    origin, inner = get_origin(annotation) or annotation, get_args(annotation)
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in inner)
    if origin is Literal:
        return isinstance(value, str)  # which one is checked where the choices are explained
    if origin in _KINDS:
        is_number = origin in (int, float)
        return isinstance(value, _KINDS[origin][0]) and not (is_number and isinstance(value, bool))
    if origin is None:
        return value is None
    if _is_list(origin):
        is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        is_list = is_list and getattr(value, "shape", None) != ()  # an array without dimensions is a number
        return is_list and all(_fits(element, inner[0]) for element in value)
    if isinstance(origin, type):
        return isinstance(value, origin)
    return True  # an annotation that is only a text


def _is_list(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Collection) and not issubclass(origin, str | bytes | Mapping)


def _origins(annotation: Any) -> list[Any]:
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [get_origin(choice) or choice for choice in choices]


def _described(annotation: Any) -> str:
    origin, inner = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_described(choice) for choice in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is bool:
        return "True or False"
    if origin in _KINDS:
        return _KINDS[origin][1]
    if origin is None:
        return "None"
    if _is_list(origin):
        return f"a list, each element {_described(inner[0])}"
    return f"a {getattr(origin, '__name__', origin)}"
