"""The command line: each command is a verb of `promptcal.verbs`."""

import math
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from promptcal import api
from promptcal._version import __version__
from promptcal.cli.check_output import check_report
from promptcal.cli.results_output import results_table
from promptcal.config.schema import MethodName, presets
from promptcal.data.benchmarks import default_root
from promptcal.data.check import MAX_DISTANCE
from promptcal.errors import ConfigError, Interrupted, PromptCALError, PromptCALWarning
from promptcal.experiments.jobs import Job, State
from promptcal.experiments.table_report import show as show_summary
from promptcal.experiments.tables import TableListing, TableReport
from promptcal.exporters import FORMS
from promptcal.report.class_count_curves import class_count_table
from promptcal.report.figures import FIGURES
from promptcal.run.inference import Assignments, Run
from promptcal.runtime import distributed
from promptcal.runtime.interrupts import StopRequest

app = typer.Typer(
    help="Sort images into the categories you know and the ones you do not know yet (PromptCAL, CVPR 2023).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
_SHARED_COMMANDS = ("fit", "demo", "benchmark")

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, such as affinity.k=10. May be repeated."),
]
Images = Annotated[
    Path, typer.Argument(help="Folder of images, sub-folders included, or a quoted pattern such as 'photos/**/*.jpg'.")
]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="CSV, TSV or parquet with the columns path,label; images not in it are unlabelled. "
        "Without it, class folders beside one named unlabelled are the labels."
    ),
]
Method = Annotated[
    str | None, typer.Option(help=f"How to learn: {', '.join(get_args(MethodName))}.", show_default="promptcal")
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")]
Precision = Annotated[
    str | None,
    typer.Option(help="auto, fp32 or bf16: of the network's matrix products. auto: bf16 on a GPU made for it."),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the network. By default on CUDA, for runs of 2,000 steps or more.",
        show_default=False,
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="Only algorithms that repeat themselves bit by bit: on a GPU slower, a CPU's do anyway."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Discard the run in --output, if there is one.")]
WarmupFrom = Annotated[
    Path | None,
    typer.Option(
        help="Run with the same images, labels, seed and settings of stage 1, whose stage 1 is taken over.",
        show_default=False,
    ),
]
StopAfter = Annotated[
    float | None,
    typer.Option(
        metavar="MINUTES",
        help="Stop training after so many minutes, at a checkpoint from which --resume goes on (exit code 75).",
        show_default=False,
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the datasets; default: the environment variable PROMPTCAL_DATA, or ./data.",
        show_default=False,
    ),
]
SkipUnreadable = Annotated[bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Do not make report.html at the end.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"promptcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if distributed.RankInfo.here().world > 1 and context.invoked_subcommand not in _SHARED_COMMANDS:
        raise ConfigError(
            f"{context.invoked_subcommand} runs in one process; leave torchrun out "
            f"({', '.join(_SHARED_COMMANDS)} can be shared)"
        )


def _number_or_auto(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor auto") from error


@app.command()
def fit(
    images: Images,
    output: Annotated[Path, typer.Option(help="Run directory to write.")],
    labels: Labels = None,
    n_classes: Annotated[
        Any,
        typer.Option(
            parser=_number_or_auto,
            metavar="N|auto",
            help="Number of categories, known and new together; auto: estimated by the labelled images.",
            show_default=False,
        ),
    ] = None,
    method: Method = None,
    truth: Annotated[Path | None, typer.Option(help="CSV with true classes, used only to report accuracy.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="timm name of a ViT; default vit_base_patch16_224.dino, fetched once. "
            "vit_tiny_patch4_32.promptcal comes with the package."
        ),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Local weight file for the backbone.")] = None,
    preset: Annotated[str | None, typer.Option(help=f"Settings to start from: {', '.join(presets())}.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    deterministic: Deterministic = False,
    start_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Finished run to go on from with new labels: its settings, weights, labels, and the numbers and names "
            "of its categories are kept; what moved is in changes.csv.",
        ),
    ] = None,
    warmup_from: WarmupFrom = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    stop_after: StopAfter = None,
    skip_unreadable: SkipUnreadable = False,
    no_report: NoReport = False,
    quiet: Quiet = False,
) -> None:
    """Learn the categories of a folder of images and write a run directory.

    Example: promptcal fit photos --labels labels.csv --n-classes 20 --output run

    With some of the found categories named: promptcal fit photos --labels more.csv --from run --output run-2

    On two GPUs: torchrun --nproc-per-node 2 -m promptcal fit photos --labels labels.csv --n-classes 20 --output run
    """
    run = api.fit(
        images=images,
        labels=labels,
        n_classes=n_classes,
        method=method,
        output=output,
        truth=truth,
        backbone=backbone,
        weights=weights,
        preset=preset,
        config=config,
        overrides=overrides or (),
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
        deterministic=deterministic,
        start_from=start_from,
        warmup_from=warmup_from,
        resume=resume,
        overwrite=overwrite,
        stop_after=stop_after,
        skip_unreadable=skip_unreadable,
        progress=not quiet,
    )
    _show(run, report=not no_report, progress=not quiet)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run directory of a finished fit.")],
    images: Annotated[list[Path], typer.Argument(help="Folder, quoted pattern, or image files.")],
    output: Annotated[Path | None, typer.Option(help="CSV file to write; default: to the terminal.")] = None,
    none_below: Annotated[
        float | None,
        typer.Option(
            help="Cosine with the nearest category's centre below which an image is of none; default: that which 95 % "
            "of the fit's images without a label reach.",
            show_default=False,
        ),
    ] = None,
    accept_all: Annotated[bool, typer.Option("--accept-all", help="Call no image none of the categories.")] = False,
    device: Device = None,
    skip_unreadable: SkipUnreadable = False,
    quiet: Quiet = False,
) -> None:
    """Put new images into the categories of a finished run, with a confidence, or say that they are of none.

    Example: promptcal predict run new-photos --output predictions.csv
    """
    chosen = images[0] if len(images) == 1 else images
    assignments = api.predict(
        run=run,
        images=chosen,
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
        console.print(_categories(assignments, "images"))
        console.print(f"Written to {output}", markup=False, highlight=False)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run directory of a finished fit.")],
    truth: Annotated[Path, typer.Option(help="CSV with the columns path,label: the true classes.")],
) -> None:
    """Score a run against true classes, over the images it was not given a label for.

    Example: promptcal evaluate run --truth truth.csv
    """
    accuracy = api.evaluate(run=run, truth=truth)
    table = Table("accuracy, %")
    for column in ("All", "Known", "New"):
        table.add_column(column, justify="right")
    for label, prefix in (("one matching (as papers report)", ""), ("separate matchings", "separate_")):
        values = (getattr(accuracy, prefix + part) for part in ("all", "known", "new"))
        table.add_row(label, *("-" if math.isnan(value) else f"{100 * value:.1f}" for value in values))
    console.print(table)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run directory of a finished fit.")],
    to: Annotated[
        str, typer.Option(help=f"Form: {'; '.join(f'{name}, {form.what}' for name, form in FORMS.items())}.")
    ],
    output: Annotated[Path, typer.Option(help="File or folder to write; must not exist yet.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy images instead of linking to them.")] = False,
    quiet: Quiet = False,
) -> None:
    """Take the found categories away in the form another program reads. Originals are never moved or changed.

    Example: promptcal export run --to folders --output sorted
    """
    written = api.export(run=run, to=to, output=output, copy=copy, progress=not quiet)
    console.print(f"Written to {written}", markup=False, highlight=False)


@app.command()
def estimate_classes(
    images: Images,
    labels: Labels = None,
    run: Annotated[
        Path | None, typer.Option(help="Run directory of a finished fit, whose network embeds the images.")
    ] = None,
    max_classes: Annotated[
        int | None, typer.Option(help="The most there may be; default: a tenth as many as images, at most 1,000.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="brent or bisection.", show_default="brent")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write the curves to (PNG, CSV, JSON).")] = None,
    backbone: Annotated[str | None, typer.Option(help="timm name of a ViT, as in fit.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Local weight file for the backbone.")] = None,
    preset: Annotated[str | None, typer.Option(help=f"Settings to start from: {', '.join(presets())}.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    device: Device = None,
    skip_unreadable: SkipUnreadable = False,
    quiet: Quiet = False,
) -> None:
    """Estimate how many categories there are, known and new together.

    All images are clustered into K groups without a look at their labels, for a dozen or so of K; the K at which the
    labelled classes are best found again is the estimate. It is a guide, not a count: look at the curves.

    Example: promptcal estimate-classes photos --labels labels.csv --output curves
    """
    count = api.estimate_classes(
        images=images,
        labels=labels,
        run=run,
        max_classes=max_classes,
        search=search,
        output=output,
        backbone=backbone,
        weights=weights,
        preset=preset,
        config=config,
        overrides=overrides or (),
        seed=seed,
        device=device,
        skip_unreadable=skip_unreadable,
        progress=not quiet,
    )
    console.print(class_count_table(count))
    known, most = count.bounds
    console.print(
        f"{count.n_classes} classes, of which {known} are known (searched {known} to {most})", highlight=False
    )
    if output is not None:
        console.print(f"Written to {output}: class-count.png, .csv, .json", markup=False, highlight=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run directory of a finished fit.")],
    output: Annotated[
        Path | None, typer.Option(help="HTML file to write.", show_default="report.html in the run directory")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a run's report: clusters, map, confusion, curves, neighbours and attention in one HTML file.

    It opens from disk, loads nothing from anywhere, and lets you name clusters and take labels.csv away.

    Example: promptcal report run
    """
    made = api.report(run=run, output=output, progress=not quiet)
    shown = "all" if made.n_shown == made.n_images else f"{made.n_shown:,}"
    told = f"{made.n_bytes / 1e6:.1f} MB, {shown} of {made.n_images:,} images shown"
    console.print(f"Written to {made.path} ({told})", markup=False, highlight=False, soft_wrap=True)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(FIGURES)}.")],
    run: Annotated[Path, typer.Argument(help="Run directory of a finished fit.")],
    output: Annotated[
        Path | None,
        typer.Option(help="PNG, SVG or PDF file to write.", show_default="figures/NAME.png in the run directory"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write one of the report's figures as a file for a paper.

    Example: promptcal figure tsne run --output map.svg
    """
    path = api.figure(name=name, run=run, output=output, progress=not quiet)
    console.print(f"Written to {path}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def check(
    images: Images,
    labels: Labels = None,
    json: Annotated[Path | None, typer.Option(help="JSON file to write, with every finding in full.")] = None,
    min_side: Annotated[int, typer.Option(help="Shorter side in pixels below which an image is tiny.", min=0)] = 32,
    near_distance: Annotated[
        int,
        typer.Option(
            help="Near duplicates differ in at most so many of 64 bits of a perceptual hash.", min=0, max=MAX_DISTANCE
        ),
    ] = 4,
    quiet: Quiet = False,
) -> None:
    """Say what a folder of images and its labels hold, and what in it would hurt a fit.

    Exits with 1 where there are problems: files that cannot be read, the same image labelled with two classes, or
    nothing left to discover. Warnings (duplicates, tiny images, classes out of balance) leave it at 0. Labels that
    do not fit the images are an error, 2.

    Example: promptcal check photos --labels labels.csv
    """
    report = api.check(
        images=images,
        labels=labels,
        output=json,
        min_side=min_side,
        near_distance=near_distance,
        progress=not quiet,
    )
    for part in check_report(report):
        console.print(part, highlight=False, soft_wrap=True)
    if report.problems:
        raise typer.Exit(1)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Run directory to write.")] = Path("promptcal-demo"),
    labels: Annotated[
        Path | None, typer.Option(help="Other labels than the demo's own, such as those from its report.")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="A finished demo to go on from with new --labels.")
    ] = None,
    method: Method = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    deterministic: Deterministic = False,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    stop_after: StopAfter = None,
    no_report: NoReport = False,
    quiet: Quiet = False,
) -> None:
    """The whole method on images and a backbone that come with the package: minutes on a CPU, no network.

    Then name a discovered category in its report, download labels.csv, and go on with it:

    Example: promptcal demo --labels labels.csv --from promptcal-demo --output promptcal-demo-2
    """
    run = api.demo(
        output=output,
        labels=labels,
        start_from=start_from,
        method=method,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
        deterministic=deterministic,
        overrides=overrides or (),
        resume=resume,
        overwrite=overwrite,
        stop_after=stop_after,
        progress=not quiet,
    )
    _show(run, report=not no_report, progress=not quiet)


def _show(run: Run, *, report: bool, progress: bool) -> None:
    """The end of a fit: what was found, how well if that can be told, and where it lies."""
    if not distributed.group().is_first:
        return
    found = api.results(run)
    console.print(_categories(run.assignments(), "unlabelled images"))
    table = results_table(found)
    if table.row_count:
        console.print(table)
    if "changes" in found:
        changes = found["changes"]
        console.print(
            f"{changes['moved']} of {changes['images']} images moved to another category since {changes['from']}, "
            f"{changes['added']} are new.",
            markup=False,
            highlight=False,
        )
    if report:
        api.report(run=run, progress=progress)
    console.print(f"Took {found['seconds']:.0f} s. In {run.path}:", markup=False, highlight=False)
    page = [(run.directory.report_file, "all of it to look at, in a browser")] if report else []
    for file, what in (
        *page,
        (run.directory.assignments_file, "the category of each image"),
        (run.directory.sheets_folder / "overview.png", "a picture of each category"),
    ):
        console.print(f"  {file.relative_to(run.path)}  {what}", markup=False, highlight=False)


def _categories(assignments: Assignments, what: str) -> Table:
    table = Table("category", "kind")
    table.add_column(what, justify="right")
    accepted = np.ones(len(assignments), dtype=bool) if assignments.accepted is None else assignments.accepted
    counts = Counter(assignments.clusters[~assignments.labelled & accepted].tolist())
    for cluster, name in enumerate(assignments.names):
        table.add_row(escape(name), assignments.kind(cluster), str(counts[cluster]))
    if not accepted.all():
        table.add_row("(none of these)", "", str(int((~accepted).sum())))
    return table


@app.command()
def datasets(root: Root = None) -> None:
    """List the benchmarks of the paper, and say which of them are there.

    Example: promptcal datasets --root data
    """
    folder = default_root() if root is None else root
    rows = api.datasets(root=folder)
    table = Table()
    table.add_column("name", no_wrap=True)
    for column in ("images", "classes", "known", "labelled"):
        table.add_column(column, justify="right")
    table.add_column("data")
    for row in rows:
        dataset = row.setup.dataset
        images = f"{'' if dataset.exact else '~'}{dataset.n_images:,}"
        counts = (str(dataset.n_classes), str(len(row.setup.known)), f"{row.setup.share:.0%}")
        table.add_row(row.setup.name, images, *counts, "absent" if row.found is None else "present")
    console.print(table)
    console.print("labelled: of the images of known classes", highlight=False)
    console.print(f"Looked in {folder.absolute()} for", markup=False, highlight=False, soft_wrap=True)
    for title, places in {row.setup.dataset.title: row.looked_for for row in rows}.items():
        names = " or ".join(place.relative_to(folder).as_posix() for place in places) or "come with the package"
        console.print(f"  {title}: {names}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def benchmark(
    name: Annotated[str, typer.Argument(help="One of those `promptcal datasets` lists.")],
    output: Annotated[Path, typer.Option(help="Run directory to write.")],
    root: Root = None,
    method: Method = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    deterministic: Deterministic = False,
    overrides: Overrides = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the dataset first if it is absent.")] = False,
    warmup_from: WarmupFrom = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    stop_after: StopAfter = None,
    skip_unreadable: SkipUnreadable = False,
    no_report: NoReport = False,
    quiet: Quiet = False,
) -> None:
    """Fit a benchmark of the paper with its preset, and score it on its unlabelled training images.

    NAME-inductive scores the test images instead, with a tenth of the training images held out to select by.
    The benchmark mini needs no download.

    Example: promptcal benchmark cub --root data --output run
    """
    run = api.benchmark(
        name=name,
        output=output,
        root=root,
        method=method,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
        deterministic=deterministic,
        overrides=overrides or (),
        download=download,
        warmup_from=warmup_from,
        resume=resume,
        overwrite=overwrite,
        stop_after=stop_after,
        skip_unreadable=skip_unreadable,
        progress=not quiet,
    )
    _show(run, report=not no_report, progress=not quiet)


class SeveralValues(TyperCommand):
    """A command with options that may be followed by several values: ``--seeds 0 1 2``, ``--rows GCD PromptCAL``."""

    SEVERAL: ClassVar = {"--seeds": re.compile(r"[\d,]+"), "--rows": re.compile(r"[^-].*")}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write the option before each of its values, as the parser wants it."""
        spread: list[str] = []
        option = None  # the one whose values are being read
        for argument in args:
            if argument.startswith("-"):
                option = argument if argument in self.SEVERAL else None
            elif option is not None and spread[-1] != option:  # a second value, or the end of them
                option = option if self.SEVERAL[option].fullmatch(argument) else None
                spread += [] if option is None else [option]
            spread.append(argument)
        return super().parse_args(ctx, spread)


@app.command(cls=SeveralValues)
def table(
    name: Annotated[
        str | None, typer.Argument(help="A table that `promptcal table --list` names, or a YAML file that defines one.")
    ] = None,
    seeds: Annotated[
        list[str] | None,
        typer.Option(metavar="N...", help="A run for each: --seeds 0 1 2 or 0,1,2.", show_default="0 1 2"),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL...", help="Run only these rows, named by their label or a part of it."),
    ] = None,
    preset_scale: Annotated[
        str,
        typer.Option(
            metavar="full|mini", help="full: as published; mini: the embedded images and backbone, CPU minutes a row."
        ),
    ] = "full",
    epoch: Annotated[
        str, typer.Option(metavar="selected|last", help="Whose weights' figures to show; the CSV has both.")
    ] = "selected",
    output: Annotated[Path, typer.Option(help="Folder of the runs, shared by all tables, and of the reports.")] = (
        api.TABLES_OUTPUT
    ),
    root: Root = None,
    device: Device = None,
    overrides: Overrides = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch datasets that are absent.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and how far each is.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and run nothing.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Report what is finished, and run nothing.")] = False,
    document: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE.md", help="Fill a page's tables, between <!-- table: NAME --> and <!-- end -->."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make a table of the paper or your own: run what is missing, report mean, deviation and published values.

    Interrupted runs are resumed, finished runs are reused. --set applies to all rows whose method has the setting; a
    row's own settings have priority. Exits with 1 if a run failed or its data are absent, after the others have run.

    Example: promptcal table generic --seeds 0 1 2 --root data
    """
    common: dict[str, Any] = {
        "output": output,
        "seeds": _seeds(seeds),
        "scale": preset_scale,
        "root": root,
        "device": device,
        "overrides": overrides or (),
    }
    if list_ or name is None:
        if rows or (name is None and (dry_run or no_run)):
            raise typer.BadParameter("give the name of a table first, such as: promptcal table generic --rows GCD")
        _show_tables(api.tables(**common))
    elif dry_run:
        _show_runs(api.table_runs(name=name, rows=rows or (), download=download, **common), output)
    else:
        common |= {"rows": rows or (), "epoch": epoch, "download": download, "run": not no_run, "progress": not quiet}
        if document is None:
            made = api.table(name=name, **common)
            _show_table(made)
            problems = made.summary.problems
        else:
            filled = api.table_document(name=name, document=document, **common)
            for file in filled.written:
                console.print(f"  {file}", markup=False, highlight=False, soft_wrap=True)
            problems = filled.problems
        errors = Console(stderr=True, soft_wrap=True)
        for run, state in sorted(problems.items()):
            errors.print(f"promptcal: {run}: {state.name}. {state.reason}", style="red", markup=False, highlight=False)
        if problems and not no_run:
            raise typer.Exit(1)


def _seeds(texts: list[str] | None) -> list[int]:
    numbers = [number for text in texts or ["0", "1", "2"] for number in text.split(",") if number]
    try:
        return [int(number) for number in numbers]
    except ValueError:
        raise typer.BadParameter(f"seeds are whole numbers, not {' '.join(numbers)}") from None


def _show_tables(listed: list[TableListing]) -> None:
    view = Table()
    view.add_column("table", no_wrap=True)
    view.add_column("what")
    for column in ("rows", "runs", "finished"):
        view.add_column(column, justify="right")
    for entry in listed:
        counts = (len(entry.table.rows), entry.n_runs, entry.n_finished)
        view.add_row(entry.table.name, entry.table.title, *map(str, counts))
    console.print(view)
    console.print("Tables share runs, so that fewer are needed for several of them.", highlight=False)


def _show_runs(runs: list[tuple[Job, State]], output: Path) -> None:
    view = Table()
    view.add_column("run", overflow="fold")
    view.add_column("state", no_wrap=True)
    for job, state in runs:
        view.add_row(escape(job.name), state.name)
    console.print(view)
    counts = Counter(state.name for _, state in runs)
    to_do = counts["missing"] + counts["interrupted"]
    states = ", ".join(f"{n} {name}" for name, n in counts.items())
    console.print(f"{len(runs)} runs in {output}: {states}. {to_do} would run.", markup=False, highlight=False)
    for reason in dict.fromkeys(state.reason for _, state in runs if state.reason):
        console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)


def _show_table(made: TableReport) -> None:
    show_summary(made.summary, console)
    for file, what in (
        (made.csv, "values of the selected and of the last epoch"),
        (made.runs_csv, "each run"),
        (made.markdown, "this table"),
        (made.plot, "a bar plot"),
    ):
        console.print(f"  {file}  {what}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: user errors are one sentence and exit code 2, an interrupted run exits with 130 or 143."""
    errors = Console(stderr=True, soft_wrap=True)

    def show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PromptCALWarning):
            errors.print(f"promptcal: {message}", style="yellow", markup=False, highlight=False)

    warnings.showwarning = show_warning
    stop = StopRequest()
    try:
        with stop.listening():
            app()
    except SystemExit:
        if not stop:
            raise
        if distributed.group().is_first:
            errors.print("promptcal: stopped", markup=False, highlight=False)
        sys.exit(stop.exit_code)
    except PromptCALError as error:
        if not error.already_reported:
            errors.print(f"promptcal: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
    except Interrupted as stopped:
        if distributed.group().is_first:
            errors.print(f"promptcal: {stopped}", markup=False, highlight=False)
        sys.exit(stopped.exit_code)
    except OSError as error:  # no room, no permission
        errors.print(f"promptcal: {error}; make room or choose another place", markup=False, highlight=False)
        sys.exit(2)
