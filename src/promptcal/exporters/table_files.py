"""Assignments and embeddings in one file: CSV, COCO JSON, or parquet if pyarrow is installed."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from promptcal._version import __version__
from promptcal.data.decoding import open_image
from promptcal.errors import DataError, RunError
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


def write_coco(run: Run, output: Path, image_files: Iterable[Path]) -> None:
    """One annotation for each whole image. Category ids are cluster + 1: many readers take 0 for background."""
    assignments = run.assignments()
    images, annotations = [], []
    table = zip(assignments.paths, image_files, assignments.clusters, assignments.confidence, strict=True)
    for number, (path, file, cluster, confidence) in enumerate(table, 1):
        width, height = _size(file)
        images.append({"id": number, "file_name": path, "width": width, "height": height})
        box = {"bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0}
        ids = {"id": number, "image_id": number, "category_id": int(cluster) + 1}
        annotations.append({**ids, **box, "score": round(float(confidence), 4)})
    categories = [
        {"id": cluster + 1, "name": name, "supercategory": assignments.kind(cluster)}
        for cluster, name in enumerate(assignments.names)
    ]
    info = {"description": f"categories by promptcal {__version__}", "version": "1.0"}
    content = {"info": info, "licenses": [], "images": images, "annotations": annotations, "categories": categories}
    files.write_json(output, content)


def _size(file: Path) -> tuple[int, int]:
    """Width and height as stored in the file, before any EXIF rotation, as readers of COCO expect."""
    try:
        with open_image(file) as image:
            return image.size
    except Exception as error:  # PIL raises many kinds of errors on damaged files
        raise DataError(f"cannot read {file} ({error}); it has changed since the fit") from error


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
