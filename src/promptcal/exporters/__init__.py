"""Export a finished run to the formats of other programs. Importing this package loads no numerical library.

Original images are never moved or changed, nothing is overwritten, and an export is complete or absent.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from promptcal.errors import RunError
from promptcal.runtime.files import is_below
from promptcal.runtime.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from promptcal.run import Run

__all__ = ["FORMATS", "ExportFormat", "export_run"]


class ExportFormat(NamedTuple):
    """One format. ``writer`` is "module:function" in this package, imported when the format is written.

    The function takes the run, the output and the console. If the format reads every image, it takes ``images``, which
    shows the progress, instead of the console; if it is a folder of images, also ``copy``.
    """

    description: str
    writer: str
    reads_images: bool = False
    is_folder: bool = False

    def __str__(self) -> str:
        return self.description


FORMATS = {
    "folders": ExportFormat("a folder for each category, with links to images", "folders:write_folders", True, True),
    "csv": ExportFormat(
        "the category of each image as CSV, or as parquet if the output ends in .parquet", "table_files:write_table"
    ),
    "coco": ExportFormat("COCO JSON with one annotation for each whole image", "table_files:write_coco", True),
    "huggingface": ExportFormat("an image folder for datasets.load_dataset", "folders:write_huggingface", True, True),
    "fiftyone-json": ExportFormat("a FiftyOneImageClassificationDataset", "folders:write_fiftyone", True, True),
    "embeddings": ExportFormat("path, category and embedding of each image as parquet", "table_files:write_embeddings"),
    "onnx": ExportFormat("the network with its categories as one ONNX file", "onnx_model:write_onnx"),
}


def export_run(run: Run, to: str, output: Path, *, copy: bool, console: Console) -> None:
    """Write the run in the format ``to``; an output that exists is rejected."""
    if to not in FORMATS:
        raise RunError(f"there is no export format {to!r}; choose one of {', '.join(FORMATS)}")
    chosen = FORMATS[to]
    if copy and not chosen.is_folder:
        raise RunError(f"--copy copies images, but {to} contains no images; remove --copy")
    _check_output(run, chosen, output)
    module, _, function = chosen.writer.partition(":")
    write = getattr(import_module(f"{__name__}.{module}"), function)
    if not chosen.reads_images:
        write(run, output, console)
        return
    images = run.image_files()  # rejects missing images before anything is written
    with progress_bar(console) as bar:
        tracked = bar.track(images, task_id=bar.add_task("exporting", total=len(images), note=""))
        write(run, output, tracked, **({"copy": copy} if chosen.is_folder else {}))


def _check_output(run: Run, chosen: ExportFormat, output: Path) -> None:
    if not output.absolute().parent.is_dir():
        raise RunError(f"the folder of the output {output} does not exist; create it first")
    if chosen.is_folder and output.is_dir() and not output.is_symlink():
        if any(output.iterdir()):
            raise RunError(f"the folder {output} is not empty; choose another --output")
    elif output.exists() or output.is_symlink():
        raise RunError(f"{output} exists already; choose another --output")
    root = run.info.root
    if chosen.is_folder and root is not None and is_below(output, Path(root)):
        reason = "is inside the image folder, where its images would count as new ones"
        raise RunError(f"the output {output} {reason}; choose another --output")
