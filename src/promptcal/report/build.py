"""Write the report of a finished run: one HTML file with style, script, data and pictures inside."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from rich.console import Console

from promptcal._version import __version__
from promptcal.errors import RunError
from promptcal.methods import METHODS
from promptcal.report import page_data
from promptcal.report.attention_panels import AttentionMaps, overlay_sheet
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.next_command import next_command
from promptcal.report.page_data import read_asset
from promptcal.report.report_inputs import ReportInputs
from promptcal.run import Run
from promptcal.runtime import files
from promptcal.runtime.progress import show_progress
from promptcal.runtime.seeds import isolated_rng
from promptcal.shards.shard_folder import ShardFolder
from promptcal.shards.totals import read_totals

_SCRIPTS = (
    *("dom.js", "lookups.js", "core.js", "decisions.js", "picking.js", "selection.js", "viewer.js", "naming.js"),
    *("cards.js", "clusters.js", "scatter.js", "map.js", "overview.js", "totals.js", "changes.js", "labels.js"),
    *("curves.js", "confusion.js", "neighbours.js", "attention.js", "context.js", "shortcuts.js", "app.js"),
)


@dataclass(frozen=True)
class Report:
    """A report that was written, its size, and how many of the run's images it shows."""

    path: Path
    n_bytes: int
    n_images: int
    n_shown: int


@isolated_rng(0)  # new networks draw weights
def write_report(run: Run, output: Path | None, console: Console, shards: Path | None = None) -> Report:
    """Write the page to ``output``, by default `report.html` in the run directory.

    ``shards``: a folder of assignments of many more images, whose numbers the page shows, too.
    """
    path = run.directory.report_file if output is None else output
    if not path.absolute().parent.is_dir():
        raise RunError(f"the folder of {path} does not exist; create it first")
    inputs = ReportInputs.load(run, console)
    analysis, maps = inputs.analysis, inputs.attention()
    data = {
        **page_records(inputs, analysis, maps),
        "title": run.path.absolute().name,
        # the browser stores the user's decisions under this key: they belong to exactly these clusters
        "fingerprint": hashlib.sha256(run.directory.assignments_file.read_bytes()).hexdigest(),
        "folder": run.info.folder,
        "isFirst": run.is_first_result,
        "nextCommand": next_command(run),
        "images": page_data.image_columns(analysis, inputs.thumbnails.sizes),
        "tiles": inputs.thumbnails.layout(),
        "map": page_data.pack(inputs.coordinates().astype("<f4")),
        "totals": _totals(run, shards, console),
    }
    files.write_text(path, _render(files.finite(data), inputs.thumbnails.sheets, overlay_sheet(maps)))
    return Report(path, path.stat().st_size, len(analysis.assignments), len(analysis.shown))


def page_records(inputs: ReportInputs, analysis: ClusterAnalysis, maps: AttentionMaps) -> dict[str, Any]:
    """What the pages show that the labelling app has, too; there, ``analysis`` is of the categories as they are now."""
    run, results = inputs.run, inputs.results
    return {
        "root": run.info.root,
        "version": __version__,
        "summary": page_data.summary_record(analysis, run, results),
        "settings": page_data.settings_table(run.config),
        "accuracy": page_data.accuracy_table(analysis, METHODS[results.method], results),
        "clusters": page_data.cluster_records(analysis),
        "suggestedMerges": page_data.merge_records(analysis),
        "mislabelled": page_data.mislabelled_record(analysis),
        "classes": analysis.classes,
        "confusion": page_data.confusion_record(analysis),
        "trainingCharts": page_data.chart_records(inputs.records, "training"),
        "graphCharts": page_data.chart_records(inputs.records, "graph"),
        "attention": page_data.attention_record(maps),
        "changes": page_data.changes_record(run.directory, results, analysis),
    }


def _totals(run: Run, shards: Path | None, console: Console) -> dict[str, Any] | None:
    """Numbers of all images in shards, by default of those in the run directory, if there are any."""
    folder = ShardFolder(shards or run.directory.shards_folder)
    if shards is None and not folder.manifest_file.is_file():
        return None
    with show_progress(console, "counting all images", len(folder.manifest().shards)) as show:
        totals = read_totals(folder, run.names, show)
    return {**totals.model_dump(), "folder": str(folder.path)}


def _render(data: dict[str, Any], sheets: Sequence[bytes], attention_sheet: bytes | None) -> str:
    """Text from users is only in the data; the script shows it as text, never as HTML."""
    style = read_asset("report.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_read_script, _SCRIPTS)) + "\n})();\n"
    policy = (  # only this style and this script are allowed, and images from the page itself
        f"default-src 'none'; img-src blob: data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(read_asset("report.html.j2"))
    return template.render(
        title=data["title"],
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        data=htmlsafe_json_dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")),
        sheets=[base64.b64encode(sheet).decode("ascii") for sheet in sheets],
        attention=None if attention_sheet is None else base64.b64encode(attention_sheet).decode("ascii"),
    )


def _read_script(name: str) -> str:
    """A script as a part of one large one: what a module exports or imports is a name in it."""
    return re.sub(r"^(export |import .*\n)", "", read_asset(name), flags=re.MULTILINE)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
