"""Make the tables of `docs/results.md` and its figures from `results/runs`, as `results/tables.yaml` lists them.

python results/make.py
"""

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
PARTS = ("all", "known", "new")
GROUPS = ("known", "new")


def run(name: str) -> dict[str, Any]:
    return json.loads((HERE / "runs" / f"{name}.json").read_text(encoding="utf-8"))


def accuracies(runs: list[dict[str, Any]], which: str) -> str:
    """All / Known / New in %, of several seeds mean +- standard deviation."""
    found = [[100 * r["accuracy"][which][part] for r in runs] for part in PARTS]
    return " / ".join(f"{mean(v):.1f}" + (f" ± {stdev(v):.1f}" if len(v) > 1 else "") for v in found)


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| | selected epoch | last epoch | seeds | epochs | config |", "|---|---|---|---|---|---|"]
    for row in rows:
        runs, stage = [run(name) for name in row["runs"]], row.get("stage")
        if stage is None:
            scores = [accuracies(runs, which) for which in ("selected", "last")]
            epochs = " + ".join(str(n) for n in _epochs(runs[0]).values())
        else:
            scores = [accuracies(runs, stage), ""]
            epochs = str(_epochs(runs[0]).get(stage, ""))
        hashes = "" if stage == "kmeans" else ", ".join(f"`{r['config_hash']}`" for r in runs)
        cells = [row["label"], *scores, str(len(runs)), epochs, hashes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _epochs(found: dict[str, Any]) -> dict[str, int]:
    epochs: dict[str, int] = {}
    for record in found["records"]:
        epochs[record["stage"]] = record["epoch"]
    return epochs


def graph_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| known · new classes | epoch | positives per query | precision | recall | queries without |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        records = [r for r in run(row["run"])["records"] if r["stage"] == "affinity"]
        for label, record in ((row["label"], records[0]), ("", records[-1])):
            cells = [label, str(record["epoch"])]
            for name, digits in (("positives", 1), ("precision", 2), ("recall", 2), ("without_positives", 2)):
                cells.append(" · ".join(f"{record[f'cls/{name}_{group}']:.{digits}f}" for group in GROUPS))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def filled(page: str, parts: dict[str, str]) -> str:
    """The page with what stands between `<!-- NAME -->` and `<!-- end -->` made anew."""
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, n = pattern.subn(lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page)  # type: ignore[misc]
        if n != 1:
            raise SystemExit(f"{PAGE} has {n} places <!-- {name} -->, not one")
    return page


def tables() -> dict[str, str]:
    wanted = yaml.safe_load((HERE / "tables.yaml").read_text(encoding="utf-8"))
    return {
        **{name: table(rows) for name, rows in wanted["tables"].items()},
        **{name: graph_table(rows) for name, rows in wanted["graphs"].items()},
    }


def draw_graph_statistics(names: list[str], file: Path) -> None:
    """Positives per query, precision, recall and empty rows over the epochs of stage 2, known and new classes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    shown = ("positives", "precision", "recall", "without_positives")
    for axes, name in zip(figure.subplots(1, 4), shown, strict=True):
        for number, run_name in enumerate(names):
            records = [r for r in run(run_name)["records"] if r["stage"] == "affinity"]
            for group, style in (("known", "-"), ("new", ":")):
                axes.plot(
                    [r["epoch"] for r in records],
                    [r[f"cls/{name}_{group}"] for r in records],
                    style,
                    color=f"C{number}",
                    label=f"{run_name}, {group}",
                )
        axes.set_title({"without_positives": "queries without", "positives": "positives per query"}.get(name, name))
        axes.set_xlabel("epoch")
        axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    figure.set_figheight(3.8)
    figure.savefig(file, dpi=110)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    wanted = yaml.safe_load((HERE / "tables.yaml").read_text(encoding="utf-8"))
    for file, names in wanted["figures"].items():
        draw_graph_statistics(names, PAGE.parent / file)


if __name__ == "__main__":
    main()
