"""All code in README.md and in the documentation: commands are run or at least parsed, Python is run, names exist.

A block is run unless the line before it says ``<!-- not run: REASON -->``. ``<!-- slow -->`` leaves it to
the slow tests.
"""

import re
import shlex
import shutil
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import settings_page
import typer
import yaml
from pages import PAGES, ROOT, blocks, inline_code

import promptcal as package
from promptcal.cli.app import app
from promptcal.experiments.definition import load_table

COMMANDS = typer.main.get_command(app).commands
SETTINGS = settings_page.settings()
SECTIONS = {key.partition(".")[0] for key in SETTINGS if "." in key}
OF_EXAMPLES = ("fixmatch",)  # settings of the package in examples/own_method


def words_of(line):
    """The words of a command, without its comment."""
    return shlex.split(line, comments=True)


def promptcal_arguments(words):
    """What follows `promptcal`, also behind torchrun or Docker; None for another program."""
    if words[:2] == ["docker", "run"]:
        words = words[next((i for i, word in enumerate(words) if word.startswith("promptcal")), len(words)) :]
        return words[1:] if len(words) > 1 else None
    if words[:1] == ["torchrun"]:
        words = words[words.index("-m") + 1 :]
    return words[1:] if words[:1] == ["promptcal"] else None


def options_of(command):
    return {flag for parameter in command.params for flag in [*parameter.opts, *parameter.secondary_opts]}


def check_settings(words):
    for option, value in pairwise(words):
        if option == "--set":
            key = value.partition("=")[0]
            assert key in SETTINGS or key.startswith(OF_EXAMPLES), f"there is no setting {key}"


def check_command(arguments):
    """The command exists and takes these arguments."""
    name, *given = arguments
    if name in ("--version", "--help"):
        return
    command = COMMANDS[name]
    check_settings(given)
    if command.params:  # raises an error for an unknown option or a missing argument
        command.make_context(name, list(given))


shell_blocks = [
    pytest.param(block, id=f"{page}:{block.line}") for page in PAGES for block in blocks(page) if block.language == "sh"
]


@pytest.mark.parametrize("block", shell_blocks)
def test_every_command_is_one(block):
    for line in block.commands:
        words = words_of(line)
        arguments = promptcal_arguments(words) if words else None
        if arguments is not None:
            check_command(arguments)
        elif words and words[0] == "make":
            assert re.search(rf"^(\S+ )*{words[1]}( \S+)*:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif words and words[0] == "python":
            assert (ROOT / words[1]).is_file()
        else:
            assert not words or words[0] in ("pip", "docker", "git", ".venv/bin/pre-commit"), words


@pytest.mark.parametrize("page", PAGES)
def test_code_in_the_text_names_what_exists(page):
    for code in inline_code(page):
        words = code.split()
        if words[0] == "promptcal" and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
            unknown = {w.partition("=")[0] for w in words[2:] if w.startswith("--")} - options_of(COMMANDS[words[1]])
            assert not unknown - {"--help"}, code
        if words[0] == "make" and len(words) == 2:
            assert f"{words[1]}" in (ROOT / "Makefile").read_text(), code
        is_file = code.endswith((".json", ".safetensors"))
        if re.fullmatch(r"[a-z]+\.[a-z_]+(=.*)?", code) and code.partition(".")[0] in SECTIONS and not is_file:
            assert code.partition("=")[0] in SETTINGS, code
        if re.fullmatch(r"promptcal(\.\w+)+(\(.*\))?", code):
            resolve(code.partition("(")[0])
        if re.fullmatch(r"(benchmarks|tests|src|results|examples|constraints|tools|docs)/[\w/.-]*", code):
            assert (ROOT / code).exists(), code


def resolve(name):
    """An attribute of the package, of one of its modules or of a class in them."""
    found, parts = package, name.split(".")[1:]
    for i, part in enumerate(parts):
        if not hasattr(found, part):
            import_module(".".join(["promptcal", *parts[: i + 1]]))
        found = getattr(found, part)
    return found


def run_page(page, promptcal, *, slow):
    """Run the blocks of a page in order. Commands of a page may have the same output."""
    names = {}
    for block in blocks(page):
        if block.mark.startswith("not run") or ((block.mark == "slow") and not slow):
            continue
        if block.language == "sh":
            for line in block.commands:
                run_command(words_of(line), promptcal, f"{page}: {line}")
        if block.language == "python":
            exec(compile(block.text, f"{page}:{block.line}", "exec"), names)


def run_command(words, promptcal, shown):
    if words[:1] == ["make"] or not words:
        return
    assert words[0] == "promptcal", f"{shown}: say why it is not run: <!-- not run: REASON -->"
    if "--output" in words and "--resume" not in words:
        remove(Path(words[words.index("--output") + 1]))
    code, _, err = promptcal(*words[1:])
    assert code == 0, f"{shown}\n{err}"


def remove(output):
    """Remove what another command of the page, or the folder, has there; everything is in a temporary folder."""
    if output.is_dir():
        shutil.rmtree(output)
    else:
        output.unlink(missing_ok=True)


def is_run(page, mark):
    return any(block.language in ("sh", "python") and block.mark == mark for block in blocks(page))


@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page, "")])
def test_the_code_of_the_page_runs(page, workspace, promptcal, few_images):
    run_page(page, promptcal, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page, "slow")])
def test_the_slow_code_of_the_page_runs(page, workspace, promptcal, few_images):
    for folder in ("results", "docs"):  # of the repository
        shutil.copytree(ROOT / folder, folder)
    run_page(page, promptcal, slow=True)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_that_are_not_run_compile(page):
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")


def test_the_table_of_ones_own_is_one(tmp_path):
    (table,) = [block.text for block in blocks("docs/research/tables.md") if block.language == "yaml"]
    (tmp_path / "my-table.yaml").write_text(table)
    labels = [row["label"] for row in yaml.safe_load(table)["rows"]]
    assert [row.label for row in load_table(str(tmp_path / "my-table.yaml")).rows] == labels


def test_version_and_date_of_the_release_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert released == (citation["version"], str(citation["date-released"]))
    assert f'\nversion = "{released[0]}"\n' in (ROOT / "pyproject.toml").read_text()
