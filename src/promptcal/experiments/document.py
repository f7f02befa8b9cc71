"""Documents: Markdown files whose tables are generated from a definition file.

A table NAME fills the lines between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from promptcal.errors import ConfigError
from promptcal.experiments.definition import Entry, Table, load_table, parse, parse_table, read_definition
from promptcal.experiments.jobs import State
from promptcal.experiments.kmeans_noise import noise_table
from promptcal.experiments.run_records import RunRecord, read_record
from promptcal.experiments.table_report import compact_markdown
from promptcal.experiments.table_request import TableRequest
from promptcal.experiments.tables import make_summary
from promptcal.runtime import files

_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


class DocumentDefinition(Entry):
    """All tables of a document, by name."""

    folder: Path
    record_folder: Path = Path("runs")
    tables: dict[str, Table] = Field({})
    kmeans_noise_tables: dict[str, dict[str, str]] = Field({}, description="by label: how benchmarks' names begin")

    def all_records(self) -> dict[str, RunRecord]:
        folder = self.folder / self.record_folder
        return {name: read_record(folder, name) for name in sorted(file.stem for file in folder.glob("*.json"))}


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
    """Run what the tables lack, then fill the tables of ``document``."""
    definition = load_document(request.name)
    try:
        page = document.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the document {document} cannot be read ({error.strerror}); create it first") from error
    texts = noise_texts(definition)
    fill_blocks(page, {**dict.fromkeys(definition.tables, ""), **texts}, document)  # before anything runs
    summaries = {key: make_summary(table, request) for key, table in definition.tables.items()}
    texts |= {key: compact_markdown(summary) for key, summary in summaries.items()}
    files.write_text(document, fill_blocks(page, texts, document))
    return DocumentReport([document], {k: state for s in summaries.values() for k, state in s.problems.items()})


def noise_texts(definition: DocumentDefinition) -> dict[str, str]:
    """The tables of how much k-means varies, as Markdown."""
    return {
        name: noise_table(benchmarks, list(definition.all_records().values()))
        for name, benchmarks in definition.kmeans_noise_tables.items()
    }


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
