"""Images and labels of a Hugging Face `datasets.Dataset`. `datasets` is imported only if the caller passes one."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcal.data.sources import ImageSource
from promptcal.errors import DataError

LABEL_COLUMN = "label"


def is_dataset(images: Any) -> bool:
    """Whether this is an object of the `datasets` library; does not import the library."""
    module = sys.modules.get("datasets")
    names = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")
    kinds = [getattr(module, name, None) for name in names]
    return isinstance(images, tuple(kind for kind in kinds if isinstance(kind, type)))


@dataclass(frozen=True)
class RowSource(ImageSource):
    """An `ImageSource` over the rows of a dataset whose image column is not decoded."""

    rows: Any
    column: str

    def content(self, index: int) -> bytes:
        image = self.rows[index][self.column]
        if image is None:
            raise ValueError("the row has no image")
        return image["bytes"] if image["bytes"] is not None else Path(image["path"]).read_bytes()


def row_source(dataset: Any) -> RowSource:
    """The images of the rows. They stay encoded, so that one bad image does not affect the others."""
    import datasets

    column = _image_column(dataset)
    rows = dataset.select_columns([column]).with_format(None).cast_column(column, datasets.Image(decode=False))
    return RowSource(rows, column)


def row_labels(dataset: Any) -> list[Any] | None:
    """The values of the column ``label`` (class names if it has them); None if there is no such column."""
    import datasets

    feature = dataset.features.get(LABEL_COLUMN)
    if not isinstance(feature, datasets.ClassLabel | datasets.Value):
        return None
    values = dataset.select_columns([LABEL_COLUMN]).with_format(None)[:][LABEL_COLUMN]
    if isinstance(feature, datasets.ClassLabel) and feature.names:
        return [None if value is None or value < 0 else feature.names[value] for value in values]
    return values


def _image_column(dataset: Any) -> str:
    import datasets

    if isinstance(dataset, dict):
        split = next(iter(dataset), "train")
        raise DataError(f"a dataset of splits ({', '.join(dataset)}) was given; choose one, such as dataset[{split!r}]")
    if not isinstance(dataset, datasets.Dataset):
        raise DataError("a streamed dataset has no random access; load it without streaming=True")
    if not len(dataset):
        raise DataError("the dataset has no rows; check its split and filters")
    columns = [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]
    if not columns:
        raise DataError(
            f"the dataset has no image column among {', '.join(dataset.features)}; "
            "cast one with dataset.cast_column(name, datasets.Image())"
        )
    if len(columns) > 1 and "image" not in columns:
        raise DataError(f"the dataset has the image columns {', '.join(columns)}; keep one with dataset.remove_columns")
    return "image" if "image" in columns else columns[0]
