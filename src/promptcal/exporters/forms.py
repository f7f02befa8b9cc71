"""The forms a run can be exported to, and what is checked before any of them is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from promptcal.errors import RunError
from promptcal.exporters.coco import write_coco
from promptcal.exporters.onnx_file import write_onnx
from promptcal.exporters.tables import write_embeddings, write_table
from promptcal.exporters.trees import write_fiftyone, write_folders, write_huggingface
from promptcal.run.inference import Run
from promptcal.runtime.progress import progress_bar


@dataclass(frozen=True)
class Form:
    """``write`` takes the run and the output, and what else it has use for: ``copy``, ``on_progress``, ``console``."""

    what: str
    write: Any
    folder: bool = False
    by_image: bool = False
    speaks: bool = False


FORMS: dict[str, Form] = {
    "folders": Form("a folder for each category with links to its images", write_folders, folder=True, by_image=True),
    "csv": Form("the category of each image as CSV (or as parquet, if the output is named so)", write_table),
    "coco": Form("COCO JSON, an annotation of each whole image", write_coco, by_image=True),
    "huggingface": Form("an image folder for datasets.load_dataset", write_huggingface, folder=True, by_image=True),
    "fiftyone-json": Form("a FiftyOneImageClassificationDataset", write_fiftyone, folder=True, by_image=True),
    "embeddings": Form("path, category and embedding of each image as parquet", write_embeddings),
    "onnx": Form("the network with its categories as one ONNX file", write_onnx, speaks=True),
}


def export_run(run: Run, to: str, output: Path, *, copy: bool, console: Console) -> None:
    """Write the run as the form ``to``; refuses an output that exists."""
    if to not in FORMS:
        raise RunError(f"there is no form {to!r} to export to; choose one of {', '.join(FORMS)}")
    form = FORMS[to]
    if copy and not form.folder:
        raise RunError(f"--copy copies images, which {to} does not hold; leave it out")
    _check_free(run, form, output)
    options: dict[str, Any] = {"copy": copy} if form.folder else {}
    if form.speaks:
        options["console"] = console
    if not form.by_image:
        form.write(run, output, **options)
        return
    n_images = len(run.image_files())  # which says what is wrong with them before anything is written
    with progress_bar(console) as bar:
        task = bar.add_task("exporting", total=n_images, note="")
        form.write(run, output, **options, on_progress=lambda done: bar.update(task, completed=done))


def _check_free(run: Run, form: Form, output: Path) -> None:
    if not output.absolute().parent.is_dir():
        raise RunError(f"the folder of the output {output} does not exist; make it first")
    if form.folder and output.is_dir() and not output.is_symlink():
        if any(output.iterdir()):
            raise RunError(f"the folder {output} is not empty; choose another --output")
    elif output.exists() or output.is_symlink():
        raise RunError(f"{output} exists already; choose another --output")
    root = run.info.root
    if form.folder and root is not None and output.resolve().is_relative_to(Path(root).resolve()):
        raise RunError(
            f"the output {output} lies in the image folder, where its images would be taken for new ones; "
            "choose another place"
        )
