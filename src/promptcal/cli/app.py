"""The commands. Each is a function of `promptcal.api`, which is imported when a command runs."""

import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

import typer
from rich.console import Console
from typer.core import TyperCommand

from promptcal._version import __version__
from promptcal.cli.options import (
    HELP,
    Device,
    Images,
    Labels,
    Overrides,
    Quiet,
    Root,
    RunPath,
    SkipUnreadable,
    number_or_auto,
    options_of,
)
from promptcal.errors import ConfigError, Interrupted, PromptCALError, PromptCALWarning, has_cause, one_line
from promptcal.experiments.table_request import TableRequest
from promptcal.exporters import FORMATS
from promptcal.pipeline.request import (
    BenchmarkRequest,
    ClusterRequest,
    EmbedRequest,
    EstimateRequest,
    FitRequest,
    PredictShardsRequest,
)
from promptcal.report import FIGURE_NAMES, SPLITS
from promptcal.runtime.interrupts import StopRequest
from promptcal.runtime.streams import EXIT_BROKEN_PIPE

app = typer.Typer(
    help="Sort images into the categories you know and the ones you do not know yet (PromptCAL, CVPR 2023).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
_DISTRIBUTED_COMMANDS = ("fit", "demo", "benchmark")
_SHARDS_HELP = {field.name: field.metadata["help"] for field in fields(PredictShardsRequest)}


def _load_api() -> ModuleType:
    """The Python interface. Importing PyTorch takes seconds, which a terminal shows."""
    errors = Console(stderr=True)
    is_shown = errors.is_terminal and os.environ.get("RANK", "0") == "0"
    with errors.status("loading") if is_shown else nullcontext():
        from promptcal import api
    return api


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"promptcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    divides_work = "--engine" in sys.argv or any(word.startswith("--engine=") for word in sys.argv)
    if "RANK" not in os.environ or context.invoked_subcommand in _DISTRIBUTED_COMMANDS or divides_work:
        return
    from promptcal.runtime.distributed import RankInfo

    if RankInfo.here().world > 1:
        raise ConfigError(
            f"{context.invoked_subcommand} runs in one process; run it without torchrun "
            f"({', '.join(_DISTRIBUTED_COMMANDS)} can use several processes, and embed and predict with --engine array)"
        )


@app.command()
@options_of(FitRequest)
def fit(options: dict[str, Any]) -> None:
    """Learn the categories of a folder of images and write a run directory.

    Example: promptcal fit photos --labels labels.csv --n-classes 20 --output run

    With some of the new categories named: promptcal fit photos --labels more.csv --from run --output run-2

    On two GPUs: torchrun --nproc-per-node 2 -m promptcal fit photos --labels labels.csv --n-classes 20 --output run
    """
    api = _load_api()

    _finish(api.fit(**options, confirm=_confirm()), options)


@app.command()
@options_of(ClusterRequest)
def cluster(options: dict[str, Any]) -> None:
    """Sort features that another model computed into categories; no image is needed and no network is trained.

    The run directory is that of a fit: predict (on new features), name, export, report, evaluate and --from work.

    Example: promptcal cluster embeddings.parquet --labels labels.csv --output run
    """
    api = _load_api()

    _finish(api.cluster(**options), options)


@app.command()
@options_of(BenchmarkRequest)
def benchmark(options: dict[str, Any]) -> None:
    """Fit a benchmark with its preset, and score it on its unlabelled training images.

    NAME-inductive scores the test images instead, with a tenth of the training images held out to select an epoch.
    NAME-dev contains only the labelled images of NAME, with half of their classes as new ones, to choose settings on.
    The benchmark mini needs no download.

    Example: promptcal benchmark cub --root data --output run
    """
    api = _load_api()

    _finish(api.benchmark(**options, confirm=_confirm()), options)


@app.command()
@options_of(BenchmarkRequest, without=("name", "root", "download"), output=Path("promptcal-demo"))
def demo(options: dict[str, Any]) -> None:
    """The benchmark mini: included images and backbone, minutes on a CPU, no network.

    Example: promptcal demo --output run

    With labels that its report downloaded: promptcal demo --labels labels.csv --from run --output run-2
    """
    api = _load_api()

    _finish(api.demo(**options, confirm=_confirm()), options)


def _finish(run: Any, options: dict[str, Any]) -> None:
    """Show the results, on the first process."""
    from promptcal.cli.run_output import show_run
    from promptcal.runtime import distributed

    if distributed.group().is_first:
        show_run(run, console, has_report=options["report"], verbose=options.get("verbose", False))


def _confirm() -> Callable[[str], bool] | None:
    """How to ask the user, who must be at a terminal."""
    return _ask if sys.stdin.isatty() else None


def _ask(question: str) -> bool:
    """The user's answer; the end of the input (Ctrl-D) is a no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as aborted:
        if has_cause(aborted, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        return False


@app.command()
def predict(
    run: RunPath,
    images: Annotated[
        list[str],
        typer.Argument(help=f"Image files, or a source of any size. {_SHARDS_HELP['source']}"),
    ],
    output: Annotated[
        Path | None, typer.Option(help="CSV file to write, or folder of shards. Default: the terminal.")
    ] = None,
    none_below: Annotated[float | None, typer.Option(help=_SHARDS_HELP["none_below"], show_default=False)] = None,
    accept_all: Annotated[bool, typer.Option("--accept-all", help=_SHARDS_HELP["accept_all"])] = False,
    device: Device = None,
    skip_unreadable: SkipUnreadable = False,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="local|array|ray",
            help=f"Write shards. {_SHARDS_HELP['engine']} Default for tar and parquet files, lists and URLs: local.",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help=_SHARDS_HELP["workers"])] = None,
    address: Annotated[str | None, typer.Option(help=_SHARDS_HELP["address"])] = None,
    shard_size: Annotated[int | None, typer.Option(help=_SHARDS_HELP["shard_size"])] = None,
    quiet: Quiet = False,
) -> None:
    """Assign new images to the categories of a finished run, with a confidence, or to none of them.

    Example: promptcal predict run new-photos --output predictions.csv

    Millions of images: promptcal predict run 's3://bucket/*.tar' --engine local --output predictions
    """
    api = _load_api()
    from promptcal.cli.run_output import categories_table
    from promptcal.shards.find_shards import is_sharded

    as_csv = output is None or output.suffix.lower() == ".csv"
    if engine is not None or any(is_sharded(image, as_csv=as_csv) for image in images):
        if output is None or as_csv:
            raise typer.BadParameter("give a folder for the shards as --output")
        size = {} if shard_size is None else {"shard_size": shard_size}
        summary = api.predict_shards(
            run=run,
            source=images,
            output=output,
            none_below=none_below,
            accept_all=accept_all,
            device=device,
            engine=engine or "local",
            workers=workers,
            address=address,
            progress=not quiet,
            **size,
        )
        _show_shards(summary)
        return
    given = {"--workers": workers, "--address": address, "--shard-size": shard_size}
    extra = next((option for option, value in given.items() if value is not None), None)
    if extra is not None:
        raise typer.BadParameter(f"{extra} is for shards; add --engine local and an --output folder")
    assignments = api.predict(
        run=run,
        images=images[0] if len(images) == 1 else images,
        output=output,
        none_below=none_below,
        accept_all=accept_all,
        device=device,
        skip_unreadable=skip_unreadable,
        progress=not quiet,
    )
    if output is None:
        sys.stdout.write(assignments.to_csv())
    else:
        console.print(categories_table(assignments, "images"))
        _say_written(output)


@app.command()
@options_of(EmbedRequest)
def embed(options: dict[str, Any]) -> None:
    """Embed every image of a source of any size, and write parquet shards with id, path and embedding.

    The same command continues after an interruption: finished shards are kept. Exits with 2 if an input is damaged
    (other shards are finished), and with 75 if a worker was killed or the disk is full: run the same command again.

    Example: promptcal embed 's3://bucket/photos-*.tar' --run run --output embeddings
    """
    api = _load_api()

    _show_shards(api.embed(**options))


def _show_shards(summary: Any) -> None:
    from promptcal.cli.shards_output import describe_shards

    console.print(describe_shards(summary), markup=False, highlight=False, soft_wrap=True)


@app.command()
def evaluate(
    run: RunPath,
    truth: Annotated[Path, typer.Option(help="CSV with the columns path,label: the true classes.")],
) -> None:
    """Score a run against true classes, on the images that had no label.

    Example: promptcal evaluate run --truth truth.csv
    """
    api = _load_api()
    from promptcal.cli.run_output import accuracy_table

    console.print(accuracy_table(api.evaluate(run=run, truth=truth)))


@app.command()
def export(
    run: RunPath,
    to: Annotated[str, typer.Option(help=f"Format: {'; '.join(f'{name}, {text}' for name, text in FORMATS.items())}.")],
    output: Annotated[Path, typer.Option(help="File or folder to write; must not exist yet.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy images instead of linking to them.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write the categories in a format that other programs read. Original images are never moved or changed.

    Example: promptcal export run --to folders --output sorted
    """
    api = _load_api()

    _say_written(api.export(run=run, to=to, output=output, copy=copy, progress=not quiet))


@app.command()
def name(
    run: RunPath,
    labels: Annotated[Path | None, typer.Argument(help="Label file, such as that of the report.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the run as its fit wrote it.")] = False,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html again.")] = True,
    quiet: Quiet = False,
) -> None:
    """Apply names and merges to a run without training. Exports, report and predict then use them.

    Example: promptcal name run labels.csv
    """
    api = _load_api()
    from promptcal.cli.naming_output import show_naming

    found = api.name(run=run, labels=labels, undo=undo)
    show_naming(found, console, is_undone=undo)
    if report:
        _say_written(api.make_report(run=run, progress=not quiet).path)


@app.command()
@options_of(EstimateRequest)
def estimate_classes(options: dict[str, Any]) -> None:
    """Estimate the number of categories, known and new together.

    Several estimators are tried on the known classes: a fifth of them is hidden at a time. The estimator that counts
    them best is used, and its errors give an interval. New classes are assumed to be like the known ones. It takes a
    minute or two, because only a part of many images is used.

    Example: promptcal estimate-classes photos --labels labels.csv --output curves
    """
    api = _load_api()
    from promptcal.report.class_count_curves import class_count_table, estimators_table

    count = api.estimate_classes(**options)
    console.print(class_count_table(count))
    if count.estimates:
        console.print(estimators_table(count))
    known, most = count.bounds
    found = count.description[0].upper() + count.description[1:]
    console.print(f"{found}, {known} of them known (searched {known} to {most}); {count.reason}.", highlight=False)
    if options["output"] is not None:
        console.print(f"Written to {options['output']}: class-count.png, .csv, .json", markup=False, highlight=False)


@app.command()
def report(
    run: RunPath,
    output: Annotated[
        Path | None, typer.Option(help="HTML file to write.", show_default="report.html in the run directory")
    ] = None,
    shards: Annotated[
        Path | None,
        typer.Option(help="Folder of shards that `promptcal predict` wrote; their numbers of images are shown, too."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a run's report: clusters, map, confusion, curves, neighbours and attention in one HTML file.

    It opens from disk, loads nothing from the network, and lets you name clusters and download labels.

    Example: promptcal report run

    For millions of images: promptcal report run --shards predictions
    """
    api = _load_api()

    made = api.make_report(run=run, output=output, shards=shards, progress=not quiet)
    shown = "all" if made.n_shown == made.n_images else f"{made.n_shown:,}"
    details = f"{made.n_bytes / 1e6:.1f} MB, {shown} of {made.n_images:,} images shown"
    _say_written(made.path, f" ({details})")


@app.command()
def serve(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run directory, a folder of run directories, or a folder of images.")
    ],
    labels: Annotated[Path | None, typer.Option(help=f"For a folder of images. {HELP['labels']}")] = None,
    n_classes: Annotated[
        Any,
        typer.Option(
            metavar="N|auto",
            parser=number_or_auto,
            show_default=False,
            help=f"For a folder of images. {HELP['n_classes']}",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="For a folder of images: run directory to write.", show_default="FOLDER-run beside the folder"
        ),
    ] = None,
    overrides: Overrides = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port.", show_default="the first free one from 8765")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
    host: Annotated[
        str,
        typer.Option(help="Address to listen at. Any other than 127.0.0.1 lets other machines in, without encryption."),
    ] = "127.0.0.1",
) -> None:
    """Label a run in the browser: name, merge and split categories, move images, and fit again.

    It needs the optional extra app. Every action is saved at once in labels.sqlite in the run directory. Ctrl-C stops
    the server. A folder of images is checked and fitted first; the page asks for what is missing.

    Example: promptcal serve run --open

    From scratch: promptcal serve photos --labels labels.csv --open
    """
    from promptcal.app.server import serve as start

    start(
        run,
        labels=labels,
        n_classes=n_classes,
        output=output,
        settings=tuple(overrides or ()),
        host=host,
        port=port,
        open_browser=open_,
        on_ready=_say_served,
        warn=_warn,
    )
    console.print("Stopped. All labels are saved.", highlight=False)


def _say_served(link: str) -> None:
    console.print(f"Open {link}", markup=False, highlight=False, soft_wrap=True)
    console.print("Ctrl-C stops the server. Every action is saved at once.", highlight=False)


def _warn(message: str) -> None:
    warnings.warn(message, PromptCALWarning, stacklevel=2)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(FIGURE_NAMES)}.")],
    run: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories of fits of the same images.")],
    output: Annotated[
        Path | None,
        typer.Option(help="PNG, SVG or PDF file to write.", show_default="figures/NAME.png in the first run directory"),
    ] = None,
    token: Annotated[
        list[str] | None,
        typer.Option(
            help="Embeddings that tsne shows: cls, prompts (the supervised prompts, [P]) or unsupervised-N (the N-th "
            "unsupervised prompt). May be repeated.",
            show_default="cls",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="|".join(SPLITS), help="Images of the fit, or test images of its benchmark.")
    ] = "train",
    root: Root = None,
    device: Annotated[str, typer.Option(help=HELP["device"])] = "auto",
    quiet: Quiet = False,
) -> None:
    """Write a figure for a paper, of one run or of several runs side by side.

    Example: promptcal figure tsne run --output map.svg

    Two runs: promptcal figure attention run-gcd run-promptcal

    Test images: promptcal figure tsne run --split test --token cls --token prompts --token unsupervised-1
    """
    api = _load_api()

    made = api.make_figure(
        name=name,
        run=run,
        output=output,
        token=token or "cls",
        split=split,
        root=root,
        device=device,
        progress=not quiet,
    )
    _say_written(made)


@app.command()
def check(
    images: Images,
    labels: Labels = None,
    n_classes: Annotated[
        Any, typer.Option(metavar="N|auto", parser=number_or_auto, help=f"As in fit. {HELP['n_classes']}")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="JSON file to write, with every finding in full.")] = None,
    min_side: Annotated[int, typer.Option(help="Shorter side in pixels below which an image is tiny.", min=0)] = 32,
    near_distance: Annotated[
        int,
        typer.Option(
            help="Near duplicates differ in at most this many of 64 bits of a perceptual hash.", min=0, max=16
        ),
    ] = 4,
    quiet: Quiet = False,
) -> None:
    """Check a folder of images and its labels before a fit.

    Exits with 1 if there are problems: files that cannot be read, the same image with two labels, nothing left to
    discover, or an --n-classes that does not fit. Warnings (duplicates, tiny images, imbalanced classes) exit with 0.
    Labels that do not fit the images are an error, 2.

    Example: promptcal check photos --labels labels.csv --n-classes 20
    """
    api = _load_api()
    from promptcal.cli.check_output import check_report

    found = api.check(
        images=images,
        labels=labels,
        n_classes=n_classes,
        output=json,
        min_side=min_side,
        near_distance=near_distance,
        progress=not quiet,
    )
    for part in check_report(found):
        console.print(part, highlight=False, soft_wrap=True)
    if found.problems:
        raise typer.Exit(1)


@app.command()
def datasets(root: Root = None) -> None:
    """List the benchmarks, and say which of them are present.

    Example: promptcal datasets --root data
    """
    api = _load_api()
    from promptcal.cli.datasets_output import show_datasets

    show_datasets(api.datasets(root=root), root, console)


class MultiValueCommand(TyperCommand):
    """A command with options that may be followed by several values: ``--seeds 0 1 2``, ``--rows GCD PromptCAL``."""

    VALUES: ClassVar = {"--seeds": re.compile(r"[\d,]+"), "--rows": re.compile(r"[^-].*")}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values, as the parser needs it."""
        spread: list[str] = []
        option = None  # the option whose values are being read
        for argument in args:
            if argument.startswith("-"):
                option = argument if argument in self.VALUES else None
            elif option is not None and spread[-1] != option:  # a second value, or the end of them
                option = option if self.VALUES[option].fullmatch(argument) else None
                spread += [] if option is None else [option]
            spread.append(argument)
        return super().parse_args(ctx, spread)


@app.command(cls=MultiValueCommand)
@options_of(TableRequest)
def table(
    options: dict[str, Any],
    list_: Annotated[
        bool, typer.Option("--list", help="List the tables and how many of their runs are finished.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their states, and run nothing.")
    ] = False,
    document: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.md", help="Fill a page's tables, between <!-- table: NAME --> and <!-- end -->."),
    ] = None,
) -> None:
    """Make a table of the paper, or one of your own: run what is missing, report means and intervals.

    Interrupted runs are resumed and finished runs are reused. Exits with 1 if a run failed or its data are missing,
    after the others have run.

    Example: promptcal table generic --seeds 0 1 2 --root data
    """
    api = _load_api()
    from promptcal.cli import table_output

    options["seeds"] = _seeds(options["seeds"])
    if list_ or not options["name"]:
        if options["rows"] or (not options["name"] and (dry_run or not options["run"])):
            raise typer.BadParameter("give the name of a table first, such as: promptcal table generic --rows GCD")
        table_output.show_listing(api.tables(**options), console)
    elif dry_run:
        table_output.show_planned_runs(api.table_runs(**options), options["output"], console)
    else:
        if document is None:
            made = api.table(**options)
            table_output.show_table(made, console)
            problems = made.summary.problems
        else:
            filled = api.table_document(document=document, **options)
            for file in filled.written:
                _say_written(file)
            problems = filled.problems
        table_output.show_problems(problems)
        if problems and options["run"]:
            raise typer.Exit(1)


for _command in app.registered_commands:
    # The terminal fills each paragraph to its width, so the line breaks of the docstring are removed.
    _paragraphs = inspect.cleandoc((_command.callback and _command.callback.__doc__) or "").split("\n\n")
    _command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in _paragraphs)


def _seeds(values: Sequence[int | str]) -> list[int]:
    numbers = [number for value in values for number in str(value).split(",") if number]
    try:
        return [int(number) for number in numbers]
    except ValueError:
        raise typer.BadParameter(f"seeds are whole numbers, not {' '.join(numbers)}") from None


def _say_written(path: Path, details: str = "") -> None:
    console.print(f"Written to {path}{details}", markup=False, highlight=False, soft_wrap=True)


def run(stop: StopRequest) -> None:
    """Run a command: user errors are one sentence and exit code 2 (75 if the same command continues), an interrupted
    run exits with 130, 143 or 129 (closed terminal), and one whose output nobody reads with 141.
    """
    errors = Console(stderr=True, soft_wrap=True)

    def show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PromptCALWarning):
            errors.print(f"promptcal: {one_line(message)}", style="yellow", markup=False, highlight=False)

    warnings.showwarning = show_warning
    threading.excepthook = _ignore_disk_errors
    try:
        app()
    except SystemExit as ended:
        if has_cause(ended, BrokenPipeError):
            sys.exit(EXIT_BROKEN_PIPE)
        if not stop:
            raise
        if _is_first_process():
            errors.print("promptcal: stopped", markup=False, highlight=False)
        sys.exit(stop.exit_code)
    except PromptCALError as error:
        if not error.already_reported:
            errors.print(f"promptcal: {error}", style="red", markup=False, highlight=False)
        sys.exit(stop.exit_code if stop.has_caused(error) else error.exit_code)
    except Interrupted as stopped:
        if _is_first_process():
            errors.print(f"promptcal: {stopped}", markup=False, highlight=False)
        sys.exit(stop.exit_code if stop else stopped.exit_code)
    except OSError as error:  # disk full, no permission
        errors.print(
            f"promptcal: {one_line(error)}; free some space or choose another place", markup=False, highlight=False
        )
        sys.exit(stop.exit_code if stop.has_caused(error) else 2)


def _ignore_disk_errors(raised: threading.ExceptHookArgs) -> None:
    """A full disk stops TensorBoard's thread; the main thread raises the same error, which becomes a sentence."""
    if not issubclass(raised.exc_type, OSError):
        threading.__excepthook__(raised)


def _is_first_process() -> bool:
    distributed = sys.modules.get("promptcal.runtime.distributed")
    return distributed is None or distributed.group().is_first
