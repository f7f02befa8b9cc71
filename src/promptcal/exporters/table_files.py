"""Assignments and embeddings as tables: CSV, or parquet if pyarrow is installed."""

from pathlib import Path
from typing import Any

from promptcal.errors import RunError
from promptcal.run import Run
from promptcal.runtime import files


def write_table(run: Run, output: Path) -> None:
    """Write the assignments: parquet if the output ends in .parquet, else CSV."""
    if output.suffix.lower() == ".parquet":
        _require_pyarrow()
        write_parquet(output, run.assignments().table())
    else:
        files.write_text(output, run.assignments().to_csv())


def write_embeddings(run: Run, output: Path) -> None:
    """Write path, cluster, name and embedding of each image as parquet."""
    pyarrow = _require_pyarrow()
    embeddings, table = run.embeddings(), run.assignments().table()
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(embeddings.reshape(-1)), embeddings.shape[1])
    write_parquet(output, {**{name: table[name] for name in ("path", "cluster", "name")}, "embedding": rows})


def write_parquet_if_installed(path: Path, columns: dict[str, Any]) -> None:
    """Write nothing if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return
    write_parquet(path, columns)


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(columns)
    files.write_with(path, lambda temporary: parquet.write_table(table, temporary))


def _require_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise RunError("writing parquet needs pyarrow; pip install 'promptcal[parquet]'") from error
    return pyarrow
