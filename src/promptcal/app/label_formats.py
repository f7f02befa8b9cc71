"""Labels as files of other programs: CSV for `fit --labels`, COCO, and Label Studio's JSON in both directions."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from promptcal._version import __version__
from promptcal.app.label_state import LabelState
from promptcal.data.decoding import open_image
from promptcal.data.images import ImageSet
from promptcal.data.labels import parse_labels
from promptcal.errors import DataError, LabelError
from promptcal.runtime import files
from promptcal.runtime.user_warnings import collected_warnings, warn

FROM_NAME, TO_NAME = "category", "image"
_PATH_KEYS = ("path", "image", "file")
_CHOICE_KEYS = ("category", "choice", "label", "class")


def to_csv(paths: Sequence[str], labels: Sequence[str | None]) -> str:
    """The file that the report downloads: an empty label is "none of these" and removes a label given before."""
    rows = [(path, label) for path, label in zip(paths, labels, strict=True) if label is not None]
    return files.csv_text(["path", "label"], rows)


def to_coco(paths: Sequence[str], labels: Sequence[str | None], folder: str | None) -> str:
    """COCO JSON of the labelled images, with one annotation for each whole image; sizes are read from the files."""
    if folder is None:
        raise DataError("COCO needs the sizes of the images, and these images are not files; export CSV instead")
    names = sorted({label for label in labels if label})
    number = {name: i for i, name in enumerate(names, start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for path, label in zip(paths, labels, strict=True):
        if not label:
            continue
        width, height = _size(Path(folder) / path)
        ids = {"id": len(images) + 1, "image_id": len(images) + 1, "category_id": number[label]}
        images.append({"id": len(images) + 1, "file_name": path, "width": width, "height": height})
        annotations.append({**ids, "bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0})
    content = {
        "info": {"description": f"labels of promptcal {__version__}", "version": "1.0"},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": number[name], "name": name, "supercategory": ""} for name in names],
    }
    return json.dumps(content, ensure_ascii=False)


def _size(file: Path) -> tuple[int, int]:
    try:
        with open_image(file) as image:
            return image.size
    except Exception as error:  # PIL raises many kinds of errors on damaged files
        raise DataError(
            f"cannot read {file} ({error}); export CSV or Label Studio JSON, which need no files"
        ) from error


def to_label_studio(paths: Sequence[str], state: LabelState, run: str) -> str:
    """A task for each image: its label as annotation (without a choice: none of these), its category as prediction."""
    names = [category.name for category in state.categories]
    found, labels = state.predictions, state.label_names()
    tasks = []
    for i, path in enumerate(paths):
        annotations = [] if labels[i] is None else [{"result": _choice(labels[i])}]
        prediction = {
            "model_version": f"promptcal {__version__} {run}",
            "score": round(float(found.confidence[i]), 4),
            "result": _choice(names[found.category[i]]),
        }
        data = {"image": f"/data/local-files/?d={quote(path)}", "path": path}
        tasks.append({"id": i + 1, "data": data, "annotations": annotations, "predictions": [prediction]})
    return json.dumps(tasks, ensure_ascii=False)


def _choice(name: str | None) -> list[dict[str, Any]]:
    if not name:
        return []
    value = {"choices": [name]}
    return [{"from_name": FROM_NAME, "to_name": TO_NAME, "type": "choices", "value": value}]


def read_labels_file(
    content: bytes, images: ImageSet, positions: Sequence[int], source: str = "the file"
) -> dict[int, str]:
    """Labels by image from CSV or from Label Studio's JSON; "" is "none of these".

    ``positions`` are those of the assigned images among ``images``. A label for an unknown image is an error.
    Warnings call the file ``source``.
    """
    if content.lstrip()[:1] in (b"[", b"{"):
        parsed = parse_labels(_label_studio_labels(content), images)
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "labels.csv"
            file.write_bytes(content)
            with collected_warnings() as warnings:
                parsed = parse_labels(file, images)
        for message in warnings:
            warn(message.replace(str(file), source))
    found = {}
    for number, i in enumerate(positions):
        if parsed.removed[i] or parsed.names[i] is not None:
            found[number] = parsed.names[i] or ""
    if not found:
        raise LabelError("the file has no label for any image of this run; check that it belongs to it")
    return found


def _label_studio_labels(content: bytes) -> dict[str, str]:
    """Labels by path of the tasks that have an annotation; the last annotation of a task counts."""
    try:
        tasks = json.loads(content)
        tasks = tasks if isinstance(tasks, list) else [tasks]
        pairs = (pair for task in tasks if (pair := _task_label(task)) is not None)
        return dict(pairs)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise LabelError(f"this is not JSON of Label Studio ({error!r}); export it there as JSON") from error


def _task_label(task: dict[str, Any]) -> tuple[str, str] | None:
    if "data" not in task:  # JSON-MIN
        name = next((task[key] for key in _CHOICE_KEYS if key in task), None)
        return None if name is None else (_task_path(task), str(name))
    given = [a for a in task.get("annotations", []) if not a.get("was_cancelled")]
    if not given:
        return None
    choices = [c for result in given[-1]["result"] for c in result["value"].get("choices", [])]
    if len(choices) > 1:
        raise LabelError(f"{_task_path(task['data'])} has several choices in Label Studio; keep one of them")
    return _task_path(task["data"]), str(choices[0]) if choices else ""


def _task_path(data: dict[str, Any]) -> str:
    """The path of the image: our own field, or the address of the file without what Label Studio put before it."""
    text = next((str(data[key]) for key in _PATH_KEYS if data.get(key)), None)
    if text is None:
        raise LabelError("a task of Label Studio has no image; export it there as JSON")
    address = urlsplit(text)
    local = parse_qs(address.query).get("d")
    if local:
        return local[0]
    return str(PurePosixPath(unquote(address.path))) if address.scheme or text.startswith("/data/") else text
