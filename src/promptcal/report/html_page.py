"""The page: one HTML file with style, script, data and pictures inside, which may load nothing else."""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

_SCRIPTS = ("core.js", "decisions.js", "viewer.js", "clusters.js", "map.js", "changes.js", "charts.js", "app.js")
_STYLE = "report.css"


def render(data: dict[str, Any], sheets: Sequence[bytes], attention_sheet: bytes | None = None) -> str:
    """Text from users is only in the data; the script shows it as text, never as HTML."""
    style = _asset(_STYLE)
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "\n})();\n"
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_asset("report.html.j2"))
    return template.render(
        title=data["title"],
        policy=content_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json(data)),
        sheets=[base64.b64encode(sheet).decode("ascii") for sheet in sheets],
        attention=None if attention_sheet is None else base64.b64encode(attention_sheet).decode("ascii"),
    )


def content_policy(style: str, script: str) -> str:
    """Only this style and this script are allowed, and images from the page itself."""
    return (
        f"default-src 'none'; img-src blob: data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def script_json(value: Any) -> str:
    """JSON that cannot end the script element around it, nor a line in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (resources.files("promptcal.report") / "assets" / name).read_text("utf-8")
