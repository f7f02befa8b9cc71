"""Options that several commands share, and commands whose options are the fields of a request."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcal.errors import shorten
from promptcal.pipeline.request import BenchmarkRequest, FitRequest

HELP: dict[str, str] = {
    field.name: field.metadata["help"] for request in (BenchmarkRequest, FitRequest) for field in fields(request)
}
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=HELP["overrides"])]
Images = Annotated[Path, typer.Argument(help=HELP["images"])]
Labels = Annotated[Path | None, typer.Option(help=HELP["labels"])]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a finished fit.")]
Device = Annotated[str | None, typer.Option(help=HELP["device"])]
Root = Annotated[Path | None, typer.Option(help=HELP["root"], show_default=False)]
SkipUnreadable = Annotated[bool, typer.Option("--skip-unreadable", help=HELP["skip_unreadable"])]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def number_or_auto(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{shorten(text)!r} is neither a whole number nor auto") from error


def options_of(
    request: type[Any], *, without: tuple[str, ...] = (), output: Path | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of ``request`` and for its own parameters, and --quiet.

    The command is called with ``options`` (the fields) and its own parameters. ``output`` is the default of --output.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        left_out = ("progress", *without)
        shown = [f for f in fields(request) if f.name not in left_out and f.metadata.get("cli") is not False]

        def call(quiet: bool, **given: Any) -> None:
            options = {f.name: given.pop(f.name) for f in shown}
            lists = {f.name: tuple(options[f.name] or f.default) for f in shown if _is_list(f)}  # type: ignore[arg-type]
            command({**options, **lists, "progress": not quiet}, **given)

        parameters = [_parameter(field, output) for field in sorted(shown, key=_help_order)]
        parameters += list(inspect.signature(command).parameters.values())[1:]
        parameters.append(inspect.Parameter("quiet", _KEYWORD, default=False, annotation=Quiet))
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=_KEYWORD) for parameter in parameters]
        )
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return decorate


def _is_list(field: "Field[Any]") -> bool:
    return isinstance(field.default, tuple)


def _parameter(field: "Field[Any]", output: Path | None) -> inspect.Parameter:
    metadata = field.metadata
    default = field.default
    if field.name == "output" and output is not None:
        default = output
    kind: Any = metadata.get("cli") or field.type
    extra: dict[str, Any] = {"help": metadata["help"], "metavar": metadata.get("metavar"), "show_default": False}
    if metadata.get("argument"):
        annotation: Any = Annotated[kind, typer.Argument(**extra)]
    else:
        if field.name == "n_classes":
            kind, extra["parser"] = Any, number_or_auto
        if _is_list(field):
            kind, default = list[str] | None, None
        flag = metadata.get("flag") or f"--{field.name.replace('_', '-')}"
        extra["show_default"] = isinstance(default, str | Path) and "Default:" not in metadata["help"]
        annotation = Annotated[kind, typer.Option(flag, **extra)]
    empty = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(field.name, _KEYWORD, default=empty, annotation=annotation)


def _help_order(field: "Field[Any]") -> int:
    """Arguments, then required options, then those to read first."""
    if field.metadata.get("argument"):
        return 0
    return 1 if field.default is MISSING else 2 if field.metadata.get("first") else 3
