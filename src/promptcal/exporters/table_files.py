"""Assignments and embeddings as tables: CSV, or parquet if pyarrow is installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from promptcal.errors import RunError
from promptcal.run import Run
from promptcal.runtime import files


def write_table(run: Run, output: Path, console: Console) -> None:
    """Write the assignments: parquet if the output ends in .parquet, else CSV."""
    if output.suffix.lower() == ".parquet":
        write_parquet(output, run.assignments().table())
    else:
        files.write_text(output, run.assignments().to_csv())


def write_embeddings(run: Run, output: Path, console: Console) -> None:
    """Write path, cluster, name and embedding of each image as parquet."""
    pyarrow = _require_pyarrow()
    embeddings, table = run.embeddings(), run.assignments().table()
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(embeddings.reshape(-1)), embeddings.shape[1])
    write_parquet(output, {**{name: table[name] for name in ("path", "cluster", "name")}, "embedding": rows})


def write_parquet_if_installed(path: Path, columns: dict[str, Any]) -> None:
    """Write nothing if pyarrow is not installed."""
    if find_spec("pyarrow") is not None:
        write_parquet(path, columns)


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    table = _require_pyarrow().table(columns)
    from pyarrow import parquet

    files.write_with(path, lambda temporary: parquet.write_table(table, temporary))


def _require_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise RunError("writing parquet needs pyarrow; pip install 'promptcal[parquet]'") from error
    return pyarrow
