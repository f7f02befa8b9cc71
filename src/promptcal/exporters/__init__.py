"""Export a finished run to the formats of other programs. Importing this package loads no numerical library.

Original images are never moved or changed, nothing is overwritten, and an export is complete or absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcal.errors import RunError
from promptcal.runtime.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from promptcal.run import Run

__all__ = ["FORMATS", "ExportFormat", "export_run"]


@dataclass(frozen=True)
class ExportFormat:
    """One format. ``writer`` is "module:function" in this package, imported when the format is written.

    The function takes the run and the output; ``copy`` if the format is a folder of images, ``on_progress`` if it
    reads every image, and ``console`` if it prints something.
    """

    description: str
    writer: str
    is_folder: bool = False
    reads_images: bool = False
    prints: bool = False

    def __str__(self) -> str:
        return self.description

    def write(self, run: Run, output: Path, **options: Any) -> None:
        module, _, function = self.writer.partition(":")
        getattr(import_module(f"{__name__}.{module}"), function)(run, output, **options)


FORMATS = {
    "folders": ExportFormat(
        "a folder for each category, with links to images",
        "folders:write_folders",
        is_folder=True,
        reads_images=True,
    ),
    "csv": ExportFormat(
        "the category of each image as CSV, or as parquet if the output ends in .parquet", "table_files:write_table"
    ),
    "coco": ExportFormat("COCO JSON with one annotation for each whole image", "coco:write_coco", reads_images=True),
    "huggingface": ExportFormat(
        "an image folder for datasets.load_dataset", "folders:write_huggingface", is_folder=True, reads_images=True
    ),
    "fiftyone-json": ExportFormat(
        "a FiftyOneImageClassificationDataset", "folders:write_fiftyone", is_folder=True, reads_images=True
    ),
    "embeddings": ExportFormat("path, category and embedding of each image as parquet", "table_files:write_embeddings"),
    "onnx": ExportFormat("the network with its categories as one ONNX file", "onnx_model:write_onnx", prints=True),
}


def export_run(run: Run, to: str, output: Path, *, copy: bool, console: Console) -> None:
    """Write the run in the format ``to``; an output that exists is rejected."""
    if to not in FORMATS:
        raise RunError(f"there is no export format {to!r}; choose one of {', '.join(FORMATS)}")
    chosen = FORMATS[to]
    if copy and not chosen.is_folder:
        raise RunError(f"--copy copies images, but {to} contains no images; remove --copy")
    _check_output(run, chosen, output)
    options: dict[str, Any] = {"copy": copy} if chosen.is_folder else {}
    if chosen.prints:
        options["console"] = console
    if not chosen.reads_images:
        chosen.write(run, output, **options)
        return
    n_images = len(run.image_files())  # rejects missing images before anything is written
    with progress_bar(console) as bar:
        task = bar.add_task("exporting", total=n_images, note="")
        chosen.write(run, output, **options, on_progress=lambda done: bar.update(task, completed=done))


def _check_output(run: Run, chosen: ExportFormat, output: Path) -> None:
    if not output.absolute().parent.is_dir():
        raise RunError(f"the folder of the output {output} does not exist; create it first")
    if chosen.is_folder and output.is_dir() and not output.is_symlink():
        if any(output.iterdir()):
            raise RunError(f"the folder {output} is not empty; choose another --output")
    elif output.exists() or output.is_symlink():
        raise RunError(f"{output} exists already; choose another --output")
    root = run.info.root
    if chosen.is_folder and root is not None and output.resolve().is_relative_to(Path(root).resolve()):
        raise RunError(
            f"the output {output} is inside the image folder, where its images would count as new ones; "
            "choose another --output"
        )
