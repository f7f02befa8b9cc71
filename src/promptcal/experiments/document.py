"""Documents: Markdown files whose tables are generated from a definition file.

A table NAME fills the lines between ``<!-- table: NAME -->`` and ``<!-- end -->``. Figures are written beside the
document.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from promptcal.errors import ConfigError
from promptcal.experiments import record_tables
from promptcal.experiments.definition import (
    Entry,
    Table,
    describe,
    is_file_name,
    load_table,
    parse_table,
    read_definition,
)
from promptcal.experiments.jobs import State
from promptcal.experiments.records import RunRecord, read_record
from promptcal.experiments.table_report import compact_markdown
from promptcal.experiments.tables import TableRequest, make_summary
from promptcal.runtime import files

_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


class NoiseRow(Entry):
    label: str
    benchmark: str  # or the first part of its name


class GraphRow(Entry):
    label: str
    record: str


class PairPrecisionRow(Entry):
    label: str
    file: str


class FigureDefinition(Entry):
    kind: Literal["graph", "validation", "map"]
    records: list[str] = Field([])
    file: str = ""


class DocumentDefinition(Entry):
    """All tables and figures of a document, by name."""

    folder: Path
    record_folder: Path = Path("runs")
    tables: dict[str, Table] = Field({})
    kmeans_noise_tables: dict[str, list[NoiseRow]] = Field({})
    graph_tables: dict[str, list[GraphRow]] = Field({})
    pair_precision_tables: dict[str, list[PairPrecisionRow]] = Field({})
    figures: dict[str, FigureDefinition] = Field({})

    def record(self, name: str) -> RunRecord:
        return read_record(self.folder / self.record_folder, name)

    def records(self, names: Sequence[str]) -> dict[str, RunRecord]:
        return {name: self.record(name) for name in names}

    def all_records(self) -> dict[str, RunRecord]:
        return self.records(sorted(file.stem for file in (self.folder / self.record_folder).glob("*.json")))


@dataclass(frozen=True)
class DocumentReport:
    """The files that were written, and the runs that could not be used."""

    written: list[Path]
    problems: dict[str, State]


def load_document(name: str) -> DocumentDefinition:
    """A definition file with several tables, or one table (of a file or of the package) as a document of one table."""
    file = Path(name)
    content = read_definition(file) if is_file_name(name) else {}
    if "tables" not in content:
        table = load_table(name)
        return DocumentDefinition(folder=file.parent, tables={table.name: table})
    shared = {"record_folder": content.get("record_folder", "runs")}
    tables = {key: parse_table({**shared, **table}, file, key) for key, table in content["tables"].items()}
    try:
        return DocumentDefinition.model_validate({**content, "tables": tables, "folder": file.parent})
    except ValidationError as error:
        raise ConfigError(f"{file}: {describe(error, content)}; fix the file and run again") from error


def write_document(request: TableRequest, document: Path) -> DocumentReport:
    """Run what the tables lack, then fill the tables of ``document`` and draw its figures."""
    definition = load_document(request.name)
    try:
        page = document.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the document {document} cannot be read ({error.strerror}); create it first") from error
    fill_blocks(page, dict.fromkeys(_table_names(definition), ""), str(document))  # before anything runs
    summaries = {key: make_summary(table, request) for key, table in definition.tables.items()}
    texts = {key: compact_markdown(summary) for key, summary in summaries.items()} | record_texts(definition)
    files.write_text(document, fill_blocks(page, texts, str(document)))
    written = [document, *(document.parent / figure for figure in definition.figures)]
    for file, figure in zip(written[1:], definition.figures.values(), strict=True):
        drawn = draw(definition, figure)
        files.write_with(file, lambda path, drawn=drawn: drawn.savefig(path, format="png", dpi=110))  # type: ignore[misc]
    return DocumentReport(written, {k: state for s in summaries.values() for k, state in s.problems.items()})


def record_texts(definition: DocumentDefinition) -> dict[str, str]:
    """The tables that are not of accuracies over seeds, as Markdown."""
    texts = {}
    for name, noise in definition.kmeans_noise_tables.items():
        records = definition.all_records().values()
        rows = [
            record_tables.noise_row(row.label, [r for r in records if r.benchmark.startswith(row.benchmark)])
            for row in noise
        ]
        texts[name] = record_tables.markdown_table(record_tables.NOISE_HEAD, rows)
    for name, graphs in definition.graph_tables.items():
        rows = [line for row in graphs for line in record_tables.graph_rows(row.label, definition.record(row.record))]
        texts[name] = record_tables.markdown_table(record_tables.GRAPH_HEAD, rows)
    for name, pairs in definition.pair_precision_tables.items():
        found = [record_tables.pair_precision_rows(row.label, definition.folder / row.file) for row in pairs]
        texts[name] = record_tables.markdown_table(found[0][0], [line for _, lines in found for line in lines])
    return texts


def fill_blocks(page: str, texts: Mapping[str, str], document: str) -> str:
    """The page with the text of each table; every table must have one block, and every block a table."""
    names = [match[2] for match in _BLOCK.finditer(page)]
    for name in texts:
        if names.count(name) != 1:
            raise ConfigError(
                f"{document} has {names.count(name)} blocks for the table {name!r}; "
                f"add one: a line <!-- table: {name} --> and a line <!-- end -->"
            )
    unknown = [name for name in names if name not in texts]
    if unknown:
        raise ConfigError(f"{document} has a block for {unknown[0]!r}, which is no table of the file; remove the block")
    return _BLOCK.sub(lambda match: f"{match[1]}{texts[match[2]]}\n{match[3]}", page)


def draw(definition: DocumentDefinition, figure: FigureDefinition) -> Any:
    from promptcal.experiments import figures  # imports matplotlib, which takes a while

    if figure.kind == "map":
        return figures.map_figure(definition.folder / figure.file)
    drawn_by = {"graph": figures.graph_figure, "validation": figures.validation_figure}[figure.kind]
    return drawn_by(definition.records(figure.records))


def _table_names(definition: DocumentDefinition) -> list[str]:
    other = (definition.kmeans_noise_tables, definition.graph_tables, definition.pair_precision_tables)
    return [*definition.tables, *(name for tables in other for name in tables)]
