"""What a notebook shows of results: short HTML without scripts, links or other files; all text is escaped."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from promptcal.data.decoding import open_image
from promptcal.runtime.frames import html_table

if TYPE_CHECKING:
    from promptcal.run.assignments import Assignments

_MAX_PIXELS = 16_000_000  # a larger picture takes seconds to decode
_MAX_PICTURE = (620, 1200)  # pixels; a row of the overview is 90 pixels high


def categories_table(assignments: "Assignments") -> str:
    """Each category with its number of images and their mean confidence."""
    accepted = np.ones(len(assignments), dtype=bool) if assignments.accepted is None else assignments.accepted
    rows: list[tuple[Any, ...]] = []
    for cluster, name in enumerate(assignments.names):
        members = (assignments.clusters == cluster) & accepted
        confidence = f"{assignments.confidence[members].mean():.2f}" if members.any() else ""
        rows.append((name, assignments.kind(cluster), int(members.sum()), confidence))
    if not accepted.all():
        rows.append(("(none of these)", "", int((~accepted).sum()), ""))
    return html_table(("category", "kind", "images", "mean confidence"), rows, assignments.description)


class ShowsCategories:
    """A fitted estimator that a notebook shows with its categories (``assignments_``) below scikit-learn's diagram."""

    def _repr_html_(self) -> str:
        base: Any = super()
        found = getattr(self, "assignments_", None)
        return base._repr_html_() + ("" if found is None else categories_table(found))

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def picture(file: Path) -> str:
    """The upper part of a picture, reduced in size; nothing if there is no such picture or it is too large."""
    try:
        with open_image(file) as image:
            if image.width * image.height > _MAX_PIXELS:
                return ""
            shown = image.convert("RGB").crop((0, 0, image.width, min(image.height, 2 * image.width)))
    except Exception:  # the picture is an extra; PIL raises any exception on damaged files
        return ""
    shown.thumbnail(_MAX_PICTURE, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    shown.save(buffer, format="JPEG", quality=75)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="examples of each category" src="data:image/jpeg;base64,{encoded}">'
