"""Make the tables of `docs/results.md` and its figures from what is kept here, as `results/tables.yaml` lists them.

python results/make.py
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import yaml

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
PARTS = ("all", "known", "new")
GROUPS = ("known", "new")


def run(name: str) -> dict[str, Any]:
    return json.loads((HERE / "runs" / f"{name}.json").read_text(encoding="utf-8"))


def read_outs(name: str) -> dict[str, dict[str, float]]:
    """The accuracies of a run by the way it was read in, the mean over the seeds of k-means."""
    found = json.loads((HERE / "readouts" / f"{name}.json").read_text(encoding="utf-8"))
    return {how: {part: mean(a[part] for a in accuracies) for part in PARTS} for how, accuracies in found.items()}


def in_words(accuracies: list[dict[str, float]], parts: tuple[str, ...] = PARTS) -> str:
    """All / Known / New in %, of several seeds mean +- standard deviation; nothing of no run."""
    found = [[100 * accuracy[part] for accuracy in accuracies] for part in parts if accuracies]
    return " / ".join(f"{mean(v):.1f}" + (f" ± {stdev(v):.1f}" if len(v) > 1 else "") for v in found)


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| | selected epoch | last epoch | seeds | epochs | minutes | config |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        runs, stage = [run(name) for name in row["runs"]], row.get("stage")
        epochs = " + ".join(str(n) for n in _epochs(runs[0]).values())
        if stage is not None:
            scores = [in_words([r["accuracy"][stage] for r in runs]), ""]
            epochs = str(_epochs(runs[0]).get(stage, ""))
        elif "readout" in row:
            scores = ["", in_words([read_outs(name)[row["readout"]] for name in row["runs"]])]
        else:
            scores = [in_words([r["accuracy"][which] for r in runs]) for which in ("selected", "last")]
        whole = stage is None and all(map(_has_its_time, runs))
        minutes = f"{mean(r['seconds'] for r in runs) / 60:.1f}" if whole else ""
        hashes = "" if stage == "kmeans" else ", ".join(f"`{r['config_hash']}`" for r in runs)
        cells = [row["label"], *scores, str(len(runs)), epochs, minutes, hashes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary_table(columns: list[str], rows: list[dict[str, Any]]) -> str:
    """All of the selected epoch, a column for each data set."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [in_words([run(name)["accuracy"]["selected"] for name in names], ("all",)) for names in row["runs"]]
        lines.append(f"| {' | '.join([row['label'], *cells])} |")
    return "\n".join(lines)


def noise_table(rows: list[dict[str, Any]]) -> str:
    """How far the accuracies of the same weights lie apart: between seeds of k-means, and between what the run said of
    its last epoch (the compiled network) and the read-out with the same seed (the plain one)."""
    heads = ["the farthest run", "the median run", "runs", "compiled and plain network, the farthest", "runs"]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in rows:
        between_seeds, by_rounding = [], []
        for file in sorted((HERE / "readouts").glob(f"{row['benchmark']}-*.json")):
            said, read = run(file.stem), json.loads(file.read_text(encoding="utf-8"))
            seeds = read["student, cls"]
            if len(seeds) > 1:
                between_seeds.append([max(a[p] for a in seeds) - min(a[p] for a in seeds) for p in PARTS])
            kept = f"{said['settings'].get('affinity.keep', 'student')}, cls"
            by_rounding.append([abs(said["accuracy"]["last"][p] - read[kept][0][p]) for p in PARTS])
        farthest, typical, rounded = (
            " / ".join(f"{100 * of(values):.1f}" for values in zip(*found, strict=True))
            for of, found in ((max, between_seeds), (median, between_seeds), (max, by_rounding))
        )
        cells = [row["label"], farthest, typical, len(between_seeds), rounded, len(by_rounding)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _has_its_time(found: dict[str, Any]) -> bool:
    """Not where stage 1 was taken over from another run, and where nothing tells whether it was."""
    epochs = [record.get("seconds") for record in found["records"]]
    return None not in epochs and found["seconds"] >= sum(epochs)


def readout_table(rows: list[dict[str, Any]], hows: list[str]) -> str:
    lines = [f"| | {' | '.join(hows)} | seeds |", "|---" * (len(hows) + 2) + "|"]
    for row in rows:
        found = [read_outs(name) for name in row["runs"]]
        cells = ["" if any(how not in one for one in found) else in_words([one[how] for one in found]) for how in hows]
        lines.append(f"| {' | '.join([row['label'], *cells, str(len(row['runs']))])} |")
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


def mining_table(rows: list[dict[str, Any]]) -> str:
    """Precision at some recalls, for each way to rank pairs."""
    lines: list[str] = []
    for row in rows:
        found = json.loads((HERE / "mining" / f"{row['run']}.json").read_text(encoding="utf-8"))
        recalls = [f"recall {recall:g}" for recall in found["recalls"]]
        head = [f"| known · new classes | | {' | '.join(recalls)} |", "|---" * (len(recalls) + 2) + "|"]
        lines = lines or head
        for number, (way, by_group) in enumerate(found["precision"].items()):
            pairs = zip(*(by_group[group] for group in GROUPS), strict=True)
            cells = [" · ".join("none" if value is None else f"{value:.2f}" for value in pair) for pair in pairs]
            lines.append(f"| {' | '.join(['' if number else row['label'], way, *cells])} |")
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
        "summary": summary_table(**wanted["summary"]),
        "noise": noise_table(wanted["noise"]),
        **{name: table(rows) for name, rows in wanted["tables"].items()},
        **{name: graph_table(rows) for name, rows in wanted["graphs"].items()},
        **{name: mining_table(rows) for name, rows in wanted["mining"].items()},
        **{name: readout_table(found["rows"], found["readouts"]) for name, found in wanted["readouts"].items()},
    }


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_graph_statistics(names: list[str], file: Path) -> None:
    """Positives per query, precision, recall and empty rows over the epochs of stage 2, known and new classes."""
    figure = _figure(11, 3.8)
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
    figure.savefig(file, dpi=110)


def draw_looks(names: list[str], file: Path) -> None:
    """What the looks at labels kept back said over all epochs: known classes, and the silhouette in stage 2."""
    figure = _figure(11, 3.6)
    shown = {"validation/known": "known classes, labels kept back", "validation/silhouette": "silhouette, new"}
    for axes, (key, title) in zip(figure.subplots(1, 2), shown.items(), strict=True):
        for name in names:
            records = run(name)["records"]
            before = {"affinity": _epochs(run(name)).get("warmup", 0)}
            looks = [(r["epoch"] + before.get(r["stage"], 0), r[key]) for r in records if key in r]
            axes.plot(*zip(*looks, strict=True) if looks else ([], []), ".-", label=name)
        axes.set_title(title)
        axes.set_xlabel("epoch")
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small", frameon=False
    )
    figure.savefig(file, dpi=110)


def draw_maps(name: str, file: Path) -> None:
    """t-SNE before and after training: a colour for each class, known ones as dots, new ones as crosses."""
    found = json.loads((HERE / "maps" / f"{name}.json").read_text(encoding="utf-8"))
    figure = _figure(11, 5.6)
    classes = sorted(set(found["classes"]), key=lambda c: (not found["known"][found["classes"].index(c)], c))
    for axes, when in zip(figure.subplots(1, 2), ("before", "after"), strict=True):
        for number, of_class in enumerate(classes):
            places = [i for i, c in enumerate(found["classes"]) if c == of_class]
            known = found["known"][places[0]]
            x, y = zip(*(found[when][i] for i in places), strict=True)
            style = {"marker": "o", "s": 5} if known else {"marker": "x", "s": 14, "linewidths": 0.8}
            colour = f"C{number % 10}"
            axes.scatter(x, y, color=colour, label=of_class.replace("_", " "), **style)
        axes.set_title({"before": "the frozen backbone", "after": "after training"}[when])
        axes.set_xticks([])
        axes.set_yticks([])
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=10, fontsize="small", frameon=False
    )
    figure.savefig(file, dpi=110)


DRAWN_BY: dict[str, Callable[[Any, Path], None]] = {
    "graph": draw_graph_statistics,
    "looks": draw_looks,
    "maps": draw_maps,
}


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    wanted = yaml.safe_load((HERE / "tables.yaml").read_text(encoding="utf-8"))
    for kind, figures in wanted["figures"].items():
        for file, shown in figures.items():
            DRAWN_BY[kind](shown, PAGE.parent / file)


if __name__ == "__main__":
    main()
