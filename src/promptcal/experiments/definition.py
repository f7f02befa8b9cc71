"""Definitions of tables, read from YAML files: those of the paper in `definitions/`, and those that users write.

A table has columns (a benchmark each, or a backbone for `efficiency`) and rows. A row is a method with its settings,
the records of finished runs, or published values only. Published values are given by column, one for each part.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from promptcal.errors import ConfigError
from promptcal.experiments.table_request import Epoch, Scale
from promptcal.models import EMBEDDED_BACKBONE
from promptcal.runtime.reading import MAX_YAML, read_bytes
from promptcal.runtime.safe_yaml import read_yaml

Detail = Literal["seeds", "epochs", "minutes", "config"]
Values = list[float | None]

FINAL = "final"  # the score of a run's final assignments

ACCURACIES = {"all": "All", "known": "Known", "new": "New", "separate_known": "Known*", "separate_new": "New*"}
WITHOUT_MATCHING = {"nmi": "NMI", "ari": "ARI"}
PERCENTAGES = {**ACCURACIES, **WITHOUT_MATCHING}
PARTS = {
    **PERCENTAGES,
    "seconds_per_image": "s / image",
    "images_per_second": "images / s",
    "gflops": "GFLOPs",
    "gflops_here": "done here",
    "million_parameters": "M param.",
}

# At mini scale the embedded data set replaces every other one; few annotations stay few.
MINI_BENCHMARKS = {
    "cifar100-c50-l10": "mini-c50-l10",
    "cifar100-c25-l50": "mini-c30-l50",
    "cifar100-c10-l50": "mini-c20-l50",
}
_DEFINITIONS = resources.files("promptcal.experiments") / "definitions"


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


EntryType = TypeVar("EntryType", bound=Entry)


class Column(Entry):
    title: str
    benchmark: str = ""
    backbone: str = Field("", description="for the efficiency table")
    score: str = Field(FINAL, description="final, or the name of a stage, a baseline or a read-out")
    epoch: Epoch | None = Field(None, description="none: the epoch of the request")

    def at_mini_scale(self) -> "Column":
        benchmark = MINI_BENCHMARKS.get(self.benchmark, "mini-inductive" if "inductive" in self.benchmark else "mini")
        return self.model_copy(update={"benchmark": benchmark, "backbone": EMBEDDED_BACKBONE})


class MiniRow(Entry):
    """A row at mini scale, where it has other settings there."""

    label: str
    overrides: list[str] = []


class Row(Entry):
    label: str
    method: str | None = None
    overrides: list[str] = []
    records: list[str] | dict[str, list[str]] = Field(
        [], description="names of run records, by column if they differ; NAME-s* stands for all that match"
    )
    score: str | None = Field(None, description="none: the column's")
    columns: list[str] | None = Field(None, description="titles of the columns the row has; none: all")
    published: dict[str, Values] = {}
    printed: dict[str, Values] = Field({}, description="what the paper prints where that is known to be wrong")
    added: str | None = Field(None, description="why the row's values are not in the paper's table")
    weights: str | None = Field(None, description="file below the data root that the backbone is loaded from")
    prompts: int = Field(0, description="for the efficiency table")
    mini: MiniRow | None = None

    def at_mini_scale(self) -> "Row":
        return self if self.mini is None else self.model_copy(update={**self.mini.model_dump(), "weights": None})

    def records_in(self, column: Column) -> list[str]:
        return self.records.get(column.title, []) if isinstance(self.records, dict) else self.records


class Table(Entry):
    name: str
    title: str = ""
    order: int = Field(1000, description="position in the list of the package's tables")
    source: str = Field("", description="label of the table in the paper's source")
    kind: Literal["accuracy", "efficiency"] = "accuracy"
    parts: list[str] = ["all", "known", "new"]
    columns: list[Column] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)
    reference: str | None = Field(
        None, description="label of the row that the others are compared with; none: the first row with a method"
    )
    details: list[Detail] = Field([], description="what a document shows of the runs of a row")
    notes: list[str] = []
    record_folder: Path = Field(Path("runs"), description="where records are, relative to the file of the table")

    @model_validator(mode="after")
    def _check(self) -> "Table":
        titles = [column.title for column in self.columns]
        for what, names in (("columns", titles), ("rows", [row.label for row in self.rows])):
            if repeated := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two {what} are called {repeated[0]!r}; rename one of them")
        if unknown := set(self.parts) - set(PARTS):
            raise ValueError(f"there is no part {sorted(unknown)[0]!r}; choose from {', '.join(PARTS)}")
        if self.reference is not None and self.reference not in [row.label for row in self.rows]:
            raise ValueError(f"there is no row {self.reference!r} to be the reference; give the label of a row")
        for row in self.rows:
            if problem := self._problem_of(row, titles):
                raise ValueError(f"row {row.label!r} {problem}")
        return self

    def _problem_of(self, row: Row, titles: list[str]) -> str | None:
        by_column = row.records if isinstance(row.records, dict) else {}
        for title in (*row.published, *row.printed, *by_column, *(row.columns or ())):
            if title not in titles:
                return f"names a column {title!r}; the columns are {', '.join(titles)}"
        for title, values in (*row.published.items(), *row.printed.items()):
            if len(values) != len(self.parts):
                return f"has {len(values)} values in column {title!r}; give {len(self.parts)} ({', '.join(self.parts)})"
        if row.method is not None and row.records:
            return "has a method and records; give one of them"
        if self.kind == "efficiency":
            return None
        if row.method is None and not row.records and not row.published:
            return "has nothing to show; give a method, records or published values"
        missing = [c.title for c in self.columns if not c.benchmark and self.has_cell(row, c)]
        if row.method is not None and missing:
            return f"has a method, but column {missing[0]!r} has no benchmark; add one to the column"
        return None

    def at(self, scale: Scale) -> "Table":
        """The table with the benchmarks, backbones and settings of a scale."""
        if scale == "full":
            return self
        columns, rows = [c.at_mini_scale() for c in self.columns], [row.at_mini_scale() for row in self.rows]
        labels = {row.label: mini.label for row, mini in zip(self.rows, rows, strict=True)}
        reference = None if self.reference is None else labels[self.reference]
        return self.model_copy(update={"columns": columns, "rows": rows, "reference": reference})

    @property
    def measured_parts(self) -> list[str]:
        """The parts, and those that every accuracy table measures: a table without published values of them too."""
        more = WITHOUT_MATCHING if self.kind == "accuracy" else {}
        return list(dict.fromkeys([*self.parts, *more]))

    def reference_label(self, wanted: str | None = None) -> str | None:
        """Label of the reference: of the row ``wanted`` (a label or a part of it), or the table's own."""
        if wanted is None:
            return self.reference or next((row.label for row in self.rows if row.method is not None), None)
        found = chosen_rows(self, [wanted])
        if len(found) > 1:
            labels = "; ".join(row.label for row in found)
            raise ConfigError(f"the reference {wanted!r} could be several rows ({labels}); give more of its label")
        return found[0].label

    def has_cell(self, row: Row, column: Column) -> bool:
        return row.columns is None or column.title in row.columns


@cache
def table_names() -> list[str]:
    """The package's tables, in the order of the paper: main text, then appendix."""
    tables = [_package_table(file.name.removesuffix(".yaml")) for file in _DEFINITIONS.iterdir()]
    return [table.name for table in sorted(tables, key=lambda table: (table.order, table.name))]


@cache
def _package_table(name: str) -> Table:
    return Table.model_validate({"name": name, **read_yaml((_DEFINITIONS / f"{name}.yaml").read_text("utf-8"))})


def load_table(name: str) -> Table:
    """A table of the package by its name, or of a file that ends in .yaml."""
    if content := read_definition(name):
        if "tables" in content:
            raise ConfigError(f"{name} defines several tables; add --document PAGE.md, the file that shows them")
        return parse_table(content, Path(name))
    if name not in table_names():
        raise ConfigError(
            f"there is no table {name!r}; choose one of {', '.join(table_names())}, or give a file that ends in .yaml"
        )
    return _package_table(name)


def read_definition(name: str) -> dict[str, Any]:
    """The content of a user's file; empty if ``name`` does not end in .yaml or .yml."""
    if not name.endswith((".yaml", ".yml")):
        return {}
    try:
        content = read_yaml(read_bytes(Path(name), MAX_YAML).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"the table {name} cannot be read ({error.strerror}); give an existing file") from error
    except ValueError as error:
        raise ConfigError(f"{name} is not valid YAML ({error}); fix the file and run again") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{name} defines no table; it needs at least columns and rows")
    return content


def parse_table(content: dict[str, Any], file: Path, name: str | None = None) -> Table:
    """The table that ``content`` of a user's file defines."""
    named = {"name": name or file.stem, "title": name or file.stem, **content}
    return parse(Table, {**named, "record_folder": file.parent / str(content.get("record_folder", "runs"))}, file)


def parse(kind: type[EntryType], content: dict[str, Any], file: Path) -> EntryType:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{file}: {_describe(error, content)}; fix the file and run again") from error


def _describe(error: ValidationError, content: Any) -> str:
    """The first problem, with the label of its row or the title of its column in place of a number."""
    first = error.errors(include_url=False, include_input=False)[0]
    names: list[str] = []
    for key in first["loc"]:
        try:
            content = content[key]
        except (LookupError, TypeError):
            content = None
        label = content.get("label") or content.get("title") if isinstance(content, dict) else None
        if isinstance(key, int) and names:
            names[-1] = f"{names[-1].removesuffix('s')} {label!r}" if label else f"{names[-1]} number {key + 1}"
        else:
            names.append(str(key))
    message = first["msg"].removeprefix("Value error, ")
    return ": ".join([", ".join(names), message]) if names else message


@cache
def keys_of_rows() -> frozenset[str]:
    """Every setting that a row of the package's tables changes."""
    rows = [row for name in table_names() for row in _package_table(name).rows]
    overrides = [o for row in rows for o in (*row.overrides, *(row.mini.overrides if row.mini else ()))]
    return frozenset(["model.weights", *(override.partition("=")[0] for override in overrides)])


def chosen_rows(table: Table, wanted: Sequence[str]) -> list[Row]:
    """The rows with these labels. Case is ignored; a part of a label is enough if no row has it as its whole label."""
    chosen: list[str] = []
    for text in wanted:
        whole = [r.label for r in table.rows if r.label.lower() == text.lower()]
        matches = whole or [r.label for r in table.rows if text.lower() in r.label.lower()]
        if not matches:
            labels = "; ".join(r.label for r in table.rows)
            raise ConfigError(f"the table {table.name} has no row {text!r}; its rows are: {labels}")
        chosen += matches
    return [row for row in table.rows if row.label in chosen]
