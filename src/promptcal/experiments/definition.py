"""What a table of the paper consists of, read from the YAML files in `definitions/`.

A table has columns (a benchmark each, or a backbone for `efficiency`) and rows (a method with its settings, or only
published figures). Each row gives the published figures by column, one for each of the table's parts.
"""

from functools import cache
from importlib import resources
from typing import Literal, cast, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from promptcal.errors import ConfigError

Scale = Literal["full", "mini"]
Stage = Literal["final", "warmup"]
Epoch = Literal["selected", "last"]
Figures = list[float | None]

ACCURACIES = {
    "all": "All",
    "known": "Known",
    "new": "New",
    "separate_known": "Known*",
    "separate_new": "New*",
}
PARTS = {
    **ACCURACIES,
    "seconds_per_image": "s / image",
    "images_per_second": "images / s",
    "gflops": "GFLOPs",
    "gflops_here": "done here",
    "million_parameters": "M param.",
}

# The order of the paper: main text, then appendix.
NAMES = (
    "generic",
    "fine-grained",
    "semiag-ablation",
    "prompt-ablation",
    "few-annotation",
    "further-ablation",
    "neighbourhood",
    "cal-weight",
    "herbarium",
    "pretraining",
    "inductive",
    "supervised-prompts",
    "efficiency",
)

# Every dataset becomes the embedded one; few annotations stay few.
MINI_BENCHMARKS = {
    "cifar100-c50-l10": "mini-c50-l10",
    "cifar100-c25-l50": "mini-c30-l50",
    "cifar100-c10-l50": "mini-c20-l50",
}
MINI_BACKBONE = "vit_tiny_patch4_32.promptcal"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Entry):
    title: str
    benchmark: str = ""
    backbone: str = Field("", description="for the efficiency table")
    stage: Stage = "final"

    def benchmark_at(self, scale: Scale) -> str:
        if scale == "full":
            return self.benchmark
        return MINI_BENCHMARKS.get(self.benchmark, "mini-inductive" if "inductive" in self.benchmark else "mini")

    def backbone_at(self, scale: Scale) -> str:
        return self.backbone if scale == "full" else MINI_BACKBONE


class MiniRow(_Entry):
    """What a row is at mini scale where that is not simply the same settings."""

    label: str
    overrides: list[str] = []


class Row(_Entry):
    label: str
    method: str | None = Field(None, description="none: published figures only")
    overrides: list[str] = []
    stage: Stage | None = Field(None, description="whose result is read; none: the column's")
    columns: list[str] | None = Field(None, description="titles of the columns the row has; none: all")
    published: dict[str, Figures] = {}
    printed: dict[str, Figures] = Field({}, description="what the paper prints where that is known to be wrong")
    added: str | None = Field(None, description="why the row's figures are not in the paper's table")
    weights: str | None = Field(None, description="file below the data root that the backbone is loaded from")
    prompts: int = Field(0, description="for the efficiency table")
    mini: MiniRow | None = None

    def at(self, scale: Scale) -> "Row":
        if scale == "full" or self.mini is None:
            return self
        return self.model_copy(update={**self.mini.model_dump(), "weights": None, "mini": None})


class Table(_Entry):
    name: str
    title: str
    source: str = Field(description="label of the table in the paper's source")
    kind: Literal["accuracy", "efficiency"] = "accuracy"
    parts: list[str] = ["all", "known", "new"]
    columns: list[Column]
    rows: list[Row]
    notes: list[str] = []

    @model_validator(mode="after")
    def _fits_together(self) -> "Table":
        titles = [c.title for c in self.columns]
        for row in self.rows:
            for by_column in (row.published, row.printed):
                if not set(by_column) <= set(titles):
                    raise ValueError(f"row {row.label!r} has figures of a column that is not there")
                if any(len(figures) != len(self.parts) for figures in by_column.values()):
                    raise ValueError(f"row {row.label!r} has too few or too many figures")
        if len({row.label for row in self.rows}) < len(self.rows):
            raise ValueError("two rows have the same label")
        return self

    def at(self, scale: Scale) -> "Table":
        """The table with its rows as they are at a scale."""
        return self.model_copy(update={"rows": [row.at(scale) for row in self.rows]})

    def has_cell(self, row: Row, column: Column) -> bool:
        return row.columns is None or column.title in row.columns


@cache
def load_table(name: str) -> Table:
    if name not in NAMES:
        raise ConfigError(f"there is no table {name!r}; choose one of {', '.join(NAMES)}")
    text = (resources.files("promptcal.experiments") / "definitions" / f"{name}.yaml").read_text("utf-8")
    return Table.model_validate({"name": name, **yaml.safe_load(text)})


def check_epoch(epoch: str) -> Epoch:
    if epoch not in get_args(Epoch):
        raise ConfigError(f"there is no epoch {epoch!r} to report; choose selected or last")
    return cast(Epoch, epoch)


@cache
def keys_of_rows() -> frozenset[str]:
    """Every setting that a row of some table is about."""
    rows = [row for name in NAMES for row in load_table(name).rows]
    overrides = [o for row in rows for o in (*row.overrides, *(row.mini.overrides if row.mini else ()))]
    return frozenset(["model.weights", *(override.partition("=")[0] for override in overrides)])


def check_scale(scale: str) -> Scale:
    if scale not in get_args(Scale):
        raise ConfigError(f"there is no scale {scale!r}; choose full or mini")
    return cast(Scale, scale)


def chosen_rows(table: Table, wanted: list[str]) -> list[Row]:
    """The rows of these labels; a label may be written in any case, or in part where no row has it whole."""
    chosen: list[str] = []
    for text in wanted:
        whole = [r.label for r in table.rows if r.label.lower() == text.lower()]
        matches = whole or [r.label for r in table.rows if text.lower() in r.label.lower()]
        if not matches:
            labels = "; ".join(r.label for r in table.rows)
            raise ConfigError(f"the table {table.name} has no row {text!r}; its rows are: {labels}")
        chosen += matches
    return [row for row in table.rows if row.label in chosen]
