"""Formats that a finished run can be exported to."""

from pathlib import Path
from typing import Any

FORMATS = {
    "folders": "a folder for each category with links to its images",
    "csv": "the category of each image as CSV (or as parquet, if the output is named so)",
    "coco": "COCO JSON, an annotation of each whole image",
    "huggingface": "an image folder for datasets.load_dataset",
    "fiftyone-json": "a FiftyOneImageClassificationDataset",
    "embeddings": "path, category and embedding of each image as parquet",
    "onnx": "the network with its categories as one ONNX file",
}


def export_run(run: Any, to: str, output: Path, *, copy: bool, console: Any) -> None:
    from promptcal.exporters.forms import export_run as write

    write(run, to, output, copy=copy, console=console)
