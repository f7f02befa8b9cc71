"""Names and labels that try to break the page, and how to read the data of a page."""

import base64
import json

import numpy as np

SCRIPT = "<script>window.stolen=1</script>"
LONG = "very-long-" * 20
RIGHT_TO_LEFT = "\u202eصورة-תמונה"
HOSTILE_FILES = [
    f"{SCRIPT[:-9]}</script>.png",  # the slash makes a folder of its first part
    "\"quoted\" & 'single'.png",
    f"{LONG}.png",
    f"{RIGHT_TO_LEFT}.png",
    "<img src=x onerror=window.stolen=2>.png",
    "comma, and \u2028 line.png",
    "back\\slash 100% #1?.png",
]
CLASSES = ['"><img src=x onerror=window.stolen=3>', f'{SCRIPT} & co, "x"', RIGHT_TO_LEFT, LONG]  # two known, two new

NAMED = '<b onclick="window.stolen=4">goose</b>'  # the name a user gives to a new category


def page_data(path):
    """The data of a page; packed columns become arrays."""
    text = path.read_text(encoding="utf-8")
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script>", start)], object_hook=_unpack)


def _unpack(value):
    if value.keys() != {"type", "data"}:
        return value
    return np.frombuffer(base64.b64decode(value["data"]), dtype=f"<{value['type']}")
