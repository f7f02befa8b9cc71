"""The reference page of the commands, made from the command line itself."""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, get_args

import typer

from promptcal.cli.app import app

INTRODUCTION = """# Commands

`promptcal COMMAND --help` shows the same on the terminal. A user error is one sentence and exit code 2. After exit code
75, 129 (a closed terminal), 130 (Ctrl-C) or 143 (SIGTERM), `--resume` continues a fit, and the same command again
continues with shards.

"""


WIDTH = 84  # of a line of code
# What an option takes, if it does not say so itself.
VALUES: dict[Any, str] = {Path: "PATH", int: "N", float: "NUMBER"}
CALLBACKS: dict[str, Any] = {
    command.callback.__name__.replace("_", "-"): command.callback for command in app.registered_commands
}


def page() -> str:
    """The page: one section for each command."""
    group: Any = typer.main.get_command(app)
    commands = {name: command for name, command in group.commands.items() if not command.hidden}
    listing = "".join(f"- [`{name}`](#{name}): {_first_sentence(command.help)}\n" for name, command in commands.items())
    return INTRODUCTION + listing + "".join(_section(name, command) for name, command in commands.items())


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join(
        ["promptcal", name, *(f"{_metavar(a)}{'...' if a.nargs == -1 else ''}" for a in arguments), "[OPTIONS]"]
    )
    text, examples = _split_examples(command.help)
    block = "\n".join([usage, *(f"\n# {title}\n{_in_lines(line)}" for title, line in examples)])
    rows = [_row(f"`{_metavar(argument)}`", argument) for argument in arguments]
    annotations = {p.name: p.annotation for p in inspect.signature(CALLBACKS[name]).parameters.values()}
    rows += [_row(_option(option, annotations[option.name]), option) for option in options]
    table = "| option | meaning |\n|---|---|\n" + "\n".join(rows)
    return f"\n## {name} {{ #{name} }}\n\n{text}\n\n```text\n{block}\n```\n\n{table}\n"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s|\n\n", text.strip())[0].replace("\n", " ")


def _split_examples(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The help text, and its examples with their titles."""
    paragraphs, examples = [], []
    for paragraph in text.strip().split("\n\n"):
        joined = " ".join(paragraph.split())
        found = re.fullmatch(r"([^:]+): ((?:promptcal|torchrun) .+)", joined)
        if found:
            examples.append((found[1], found[2]))
        else:
            paragraphs.append(joined)
    return "\n\n".join(paragraphs), examples


def _metavar(parameter: Any) -> str:
    return parameter.metavar or parameter.name.upper()


def _option(option: Any, annotation: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    if option.is_flag:
        return flags
    kind = get_args(annotation)[0]  # of Annotated
    value = option.metavar or next((VALUES[k] for k in (kind, *get_args(kind)) if k in VALUES), "TEXT")
    return f"{flags} `{value}`"


def _row(name: str, parameter: Any) -> str:
    notes = " **Required.**" if parameter.required and parameter.param_type_name == "option" else ""
    shown = getattr(parameter, "show_default", False)
    default = shown if isinstance(shown, str) else parameter.default if shown else None
    is_value = isinstance(default, str | int | Path) and not isinstance(default, bool) and default != ""
    if is_value and "Default:" not in (parameter.help or ""):
        notes += f" Default: {default}."
    return f"| {name} | {_cell((parameter.help or '') + notes)} |"


def _in_lines(command: str) -> str:
    return " \\\n  ".join(textwrap.wrap(command, WIDTH, break_on_hyphens=False, break_long_words=False))


def _cell(text: str) -> str:
    text = re.sub(r"(?<![`\w-])--[a-z][a-z-]*(?![\w-]*`)", r"`\g<0>`", text)
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
