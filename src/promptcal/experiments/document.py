"""Documents: Markdown files whose tables are generated from a definition file.

A table NAME fills the lines between ``<!-- table: NAME -->`` and ``<!-- end -->``. Figures are written beside the
document.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from promptcal.errors import ConfigError
from promptcal.experiments import record_tables
from promptcal.experiments.definition import Entry, Table, load_table, parse, parse_table, read_definition
from promptcal.experiments.jobs import State
from promptcal.experiments.run_records import RunRecord, read_record
from promptcal.experiments.table_report import compact_markdown
from promptcal.experiments.table_request import TableRequest
from promptcal.experiments.tables import make_summary
from promptcal.runtime import files

_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

_PictureName = Annotated[str, Field(pattern=r"^[\w-]+\.png$")]  # a definition from somebody else cannot write elsewhere


class FigureDefinition(Entry):
    kind: Literal["graph", "validation", "map"]
    records: list[str] = Field([])
    file: str = ""


class DocumentDefinition(Entry):
    """All tables and figures of a document, by name."""

    folder: Path
    record_folder: Path = Path("runs")
    tables: dict[str, Table] = Field({})
    kmeans_noise_tables: dict[str, dict[str, str]] = Field({}, description="by label: how benchmarks' names begin")
    graph_tables: dict[str, dict[str, str]] = Field({}, description="by label: a record")
    pair_precision_tables: dict[str, dict[str, str]] = Field({}, description="by label: a file")
    figures: dict[_PictureName, FigureDefinition] = Field({}, description="by file, beside the document")

    def record(self, name: str) -> RunRecord:
        return read_record(self.folder / self.record_folder, name)

    def all_records(self) -> dict[str, RunRecord]:
        names = sorted(file.stem for file in (self.folder / self.record_folder).glob("*.json"))
        return {name: self.record(name) for name in names}


@dataclass(frozen=True)
class DocumentReport:
    """The files that were written, and the runs that could not be used."""

    written: list[Path]
    problems: dict[str, State]


def load_document(name: str) -> DocumentDefinition:
    """A definition file with several tables, or one table (of a file or of the package) as a document of one table."""
    file, content = Path(name), read_definition(name)
    if "tables" not in content:
        table = load_table(name)
        return DocumentDefinition(folder=file.parent, tables={table.name: table})
    shared = {"record_folder": content.get("record_folder", "runs")}
    tables = {key: parse_table({**shared, **table}, file, key) for key, table in content["tables"].items()}
    return parse(DocumentDefinition, {**content, "tables": tables, "folder": file.parent}, file)


def write_document(request: TableRequest, document: Path) -> DocumentReport:
    """Run what the tables lack, then fill the tables of ``document`` and draw its figures."""
    definition = load_document(request.name)
    try:
        page = document.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the document {document} cannot be read ({error.strerror}); create it first") from error
    texts = record_texts(definition)
    fill_blocks(page, {**dict.fromkeys(definition.tables, ""), **texts}, document)  # before anything runs
    summaries = {key: make_summary(table, request) for key, table in definition.tables.items()}
    texts |= {key: compact_markdown(summary) for key, summary in summaries.items()}
    files.write_text(document, fill_blocks(page, texts, document))
    written = [document]
    for name, figure in definition.figures.items():
        written.append(document.parent / name)
        drawn = draw_figure(definition, figure)
        files.write_with(written[-1], lambda path, drawn=drawn: drawn.savefig(path, format="png", dpi=110))  # type: ignore[misc]
    return DocumentReport(written, {k: state for s in summaries.values() for k, state in s.problems.items()})


def record_texts(definition: DocumentDefinition) -> dict[str, str]:
    """The tables that are not of accuracies over seeds, as Markdown."""
    texts = {}
    for name, benchmarks in definition.kmeans_noise_tables.items():
        texts[name] = record_tables.noise_table(benchmarks, list(definition.all_records().values()))
    for name, records in definition.graph_tables.items():
        texts[name] = record_tables.graph_table({label: definition.record(r) for label, r in records.items()})
    for name, paths in definition.pair_precision_tables.items():
        texts[name] = record_tables.pair_precision_table({k: definition.folder / path for k, path in paths.items()})
    return texts


def fill_blocks(page: str, texts: Mapping[str, str], document: Path) -> str:
    """The page with the text of each table; every table must have one block, and every block a table."""
    names = [match[2] for match in _BLOCK.finditer(page)]
    for name in texts:
        if names.count(name) != 1:
            raise ConfigError(
                f"{document} has {names.count(name)} blocks for the table {name!r}; "
                f"add one: a line <!-- table: {name} --> and a line <!-- end -->"
            )
    if unknown := [name for name in names if name not in texts]:
        raise ConfigError(f"{document} has a block for {unknown[0]!r}, which is no table of the file; remove the block")
    return _BLOCK.sub(lambda match: f"{match[1]}{texts[match[2]]}\n{match[3]}", page)


def draw_figure(definition: DocumentDefinition, figure: FigureDefinition) -> Any:
    from promptcal.experiments import document_figures as figures  # imports matplotlib, which takes a while

    if figure.kind == "map":
        return figures.map_figure(definition.folder / figure.file)
    drawn_by = {"graph": figures.graph_figure, "validation": figures.validation_figure}[figure.kind]
    return drawn_by({name: definition.record(name) for name in figure.records})
