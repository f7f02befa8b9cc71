"""The options of a table, each declared once for Python and the command line.

This module imports nothing heavy: the command line builds its help from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from promptcal.errors import ConfigError
from promptcal.pipeline.request import PROTOCOL_HELP, PathOrText, Protocol, option

# ruff: noqa: RUF009 - `option` returns a dataclass field

Scale = Literal["full", "mini"]
Epoch = Literal["selected", "last"]
KMEANS_REPEATS = 3
_MOST_REPEATS = 1000


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """The options of `promptcal table`."""

    name: str = field(
        default="", metadata={"help": "A name from `promptcal table --list`, or a YAML file.", "argument": True}
    )
    seeds: Sequence[int] = option((0, 1, 2), metavar="N...", help="A run for each: 0 1 2 or 0,1,2. Default: 0 1 2.")
    kmeans_repeats: int = option(
        KMEANS_REPEATS,
        metavar="N",
        help=f"Seeds of k-means for each score of a method that assigns by k-means. Default: {KMEANS_REPEATS}.",
    )
    reference: str | None = option(
        metavar="LABEL", help="The row that the others are compared with, seed by seed. Default: the table's own."
    )
    rows: Sequence[str] = option((), metavar="LABEL...", help="Run only these rows: their labels or parts of them.")
    scale: Scale = option(
        "full",
        flag="--preset-scale",
        metavar="full|mini",
        cli=str,
        help="full: as published; mini: the included images and backbone, minutes per row on a CPU.",
    )
    protocol: Protocol = option("default", metavar="default|published", cli=str, help=PROTOCOL_HELP)
    generic_images: PathOrText | None = option(
        cli=Path | None,
        help="Folder of generic images, such as ImageNet's, for the distillation in PromptCAL's first epochs.",
    )
    epoch: Epoch = option(
        "selected", metavar="selected|last", cli=str, help="Which weights the figures are of; the CSV has both."
    )
    output: PathOrText = option("runs/tables", cli=Path, help="Folder of runs, which tables share, and of reports.")
    root: PathOrText | None = option(
        cli=Path | None, help="Folder with the datasets. Default: the environment variable PROMPTCAL_DATA, or ./data."
    )
    device: str | None = option(help="auto, cpu, cuda or mps.")
    overrides: Sequence[str] = option(
        (),
        flag="--set",
        metavar="KEY=VALUE",
        help="Change one setting of all rows whose method has it; a row's own settings have priority. May be repeated.",
    )
    download: bool = option(False, help="Download datasets that are missing.")
    run: bool = option(True, flag=" /--no-run", help="Report what is finished, and run nothing.")
    progress: bool = option(True, help="Show progress.")

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise ConfigError(f"there is no scale {self.scale!r}; choose full or mini")
        if self.epoch not in get_args(Epoch):
            raise ConfigError(f"there is no epoch {self.epoch!r} to report; choose selected or last")
        if self.protocol not in get_args(Protocol):
            raise ConfigError(f"there is no protocol {self.protocol!r}; choose default or published")
        if not 1 <= self.kmeans_repeats <= _MOST_REPEATS:
            raise ConfigError(f"k-means needs 1 to {_MOST_REPEATS:,} repeats, such as --kmeans-repeats 3")
        if not 1 <= len(self.seeds) <= _MOST_REPEATS or not all(0 <= seed < 2**63 for seed in self.seeds):
            raise ConfigError(f"give at least one seed (at most {_MOST_REPEATS:,}), all from 0 to 2**63 - 1")

    @property
    def folder(self) -> Path:
        return Path(self.output)

    @property
    def unique_seeds(self) -> list[int]:
        return list(dict.fromkeys(self.seeds))
