"""COCO JSON: one annotation for each whole image, with its category."""

from collections.abc import Iterable
from pathlib import Path

from promptcal._version import __version__
from promptcal.data.decoding import open_image
from promptcal.errors import DataError
from promptcal.run import Run
from promptcal.runtime import files


def write_coco(run: Run, output: Path, image_files: Iterable[Path]) -> None:
    """Category ids are cluster + 1, because many readers take 0 for the background."""
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
