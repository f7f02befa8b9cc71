"""Pages of the notebooks, with the output that is stored in them."""

import base64
import json
from pathlib import Path
from typing import Any


def pages(folder: Path) -> dict[str, str]:
    """Markdown by path below docs, for each notebook of the folder."""
    return {f"notebooks/{file.stem}.md": page(file) for file in sorted(folder.glob("*.ipynb"))}


def page(file: Path) -> str:
    """A notebook as Markdown."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    parts = [_cell(cell) for cell in cells]
    parts.insert(1, f"*This page is the notebook `notebooks/{file.name}`. Run it with Jupyter.*")
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] != "code":
        return source
    shown = "\n\n".join(filter(None, map(_output, cell["outputs"])))
    code = f"````python\n{source}\n````"
    return f"{code}\n\n{shown}" if shown else code


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _text("".join(output["text"]))
    if output["output_type"] == "error":
        raise ValueError(f"the notebook stores an error: {output['evalue']}")
    data = {kind: "".join(value) for kind, value in output["data"].items() if isinstance(value, list | str)}
    if "image/png" in data:
        return f'<img class="output" alt="Output of the code above" src="data:image/png;base64,{_one_line(data)}">'
    if "text/html" in data:
        flat = "\n".join(line for line in data["text/html"].splitlines() if line.strip())
        plain = flat.replace('<table border="1" class="dataframe">', "<table>")  # of pandas
        return f'<div class="output">\n{plain}\n</div>'
    return _text(data.get("text/plain", ""))


def _one_line(data: dict[str, str]) -> str:
    base64.b64decode(data["image/png"])  # fails if it is damaged
    return data["image/png"].replace("\n", "")


def _text(text: str) -> str:
    return f'````text title="Output"\n{text.rstrip()}\n````' if text.strip() else ""
