"""The published lists of classes in assets/splits."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def published_split(name: str) -> dict[str, Any]:
    """The content of a list; class numbers are the data set's own, from 0."""
    file = resources.files("promptcal.data") / "assets" / "splits" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def published_known_classes(name: str) -> list[int]:
    """Known classes of a list of the Semantic Shift Benchmark ("known_classes") or of Herbarium19 ("Old")."""
    split = published_split(name)
    return split["known_classes"] if "known_classes" in split else split["Old"]
