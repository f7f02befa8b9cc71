"""How right the positives are that the affinity graph finds, with and without its parts: `results/mining/NAME.json`.

    python results/mining.py RUN...

On the embeddings a finished run ended with (`--method kmeans`: the frozen backbone's), which needs the truth beside
it. As many images as a batch and the memory hold are drawn, and pairs of them are ranked in several ways; no label is
used. Precision is that of the strongest pairs which have a given share of all right ones among them.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.methods.promptcal.graph.consensus import consensus_graph, neighbour_graph
from promptcal.methods.promptcal.graph.diffusion import diffuse
from promptcal.run.inference import Run

HERE = Path(__file__).parent
RECALLS = (0.05, 0.1, 0.2, 0.3)
DRAWS = 5
Study = dict[str, dict[str, list[float | None]]]  # precision by way, by group of queries, at each recall


def strengths(nodes: Tensor, k: int) -> dict[str, Tensor]:
    """Nodes x nodes, for each way to rank pairs; 0 where it does not link them, and on the diagonal."""
    consensus = consensus_graph(nodes, k)
    found = {
        "cosine": (nodes @ nodes.T).clamp(min=0.0),
        "no propagation": consensus,
        "no consensus": diffuse(neighbour_graph(nodes, k)),
        "consensus and propagation": diffuse(consensus),
    }
    return {way: rows.fill_diagonal_(0.0) for way, rows in found.items()}


def precision_at(rows: Tensor, right: Tensor, recalls: tuple[float, ...] = RECALLS) -> list[float]:
    """Of the strongest pairs of all queries together, just so many that the recall is reached; NaN where it is not."""
    linked = rows > 0
    hits = right[linked][rows[linked].argsort(descending=True, stable=True)].cumsum(0)
    wanted = (torch.tensor(recalls) * right.sum()).ceil().clamp(min=1).to(hits)
    pairs = torch.searchsorted(hits, wanted) + 1
    reached = pairs <= len(hits)
    return torch.where(reached, wanted / pairs, torch.nan).tolist()


def precision_by_query(rows: Tensor, right: Tensor, recalls: tuple[float, ...] = RECALLS) -> list[float]:
    """The same where every query has equally many."""
    order = rows.argsort(dim=1, descending=True, stable=True)
    hits = right.gather(1, order).cumsum(1).sum(0)
    if not right.any():
        return [torch.nan] * len(recalls)
    wanted = (torch.tensor(recalls) * right.sum()).ceil().clamp(min=1).to(hits)
    each = torch.searchsorted(hits, wanted)
    return (hits[each] / ((each + 1) * len(rows))).tolist()


def study(embeddings: np.ndarray, truth: np.ndarray, n_known: int, *, k: int, nodes: int, seed: int = 0) -> Study:
    """By way and by group of queries (known and new classes); ``truth`` below ``n_known`` is a known class.

    Means over several draws of nodes; none where a draw does not reach the recall.
    """
    unit = F.normalize(torch.from_numpy(np.asarray(embeddings, dtype=np.float32)), dim=1)
    found: dict[str, dict[str, list[list[float]]]] = {}
    for draw in range(DRAWS):
        chosen = np.random.default_rng([seed, draw]).choice(len(unit), min(nodes, len(unit)), replace=False)
        numbers = torch.from_numpy(truth[chosen])
        right = (numbers[:, None] == numbers).fill_diagonal_(False)
        is_new = numbers >= n_known
        for way, rows in strengths(unit[chosen], k).items():
            for group, members in (("known", ~is_new), ("new", is_new)):
                ranked = {way: precision_at(rows[members], right[members])}
                if way == "consensus and propagation":
                    ranked[f"{way}, equally many for each query"] = precision_by_query(rows[members], right[members])
                for name, precision in ranked.items():
                    found.setdefault(name, {}).setdefault(group, []).append(precision)
    return {way: {group: _mean(draws) for group, draws in by_group.items()} for way, by_group in found.items()}


def _mean(draws: list[list[float]]) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 4) for value in np.mean(draws, axis=0)]


def study_of(run: Run) -> Study:
    truth, known, config = run.truth(), run.info["known_classes"], run.config
    if truth is None:
        raise SystemExit(
            f"{run.path} has no truth beside it; give a run of a benchmark, or one that was fit with --truth"
        )
    told = {place: name for place, name in enumerate(truth) if name is not None}
    number = {name: n for n, name in enumerate([*known, *sorted({*told.values()} - {*known})])}
    numbers = np.array([number[name] for name in told.values()])
    embeddings = np.load(run.directory.embeddings_file, mmap_mode="r")[[*told]]
    return study(
        embeddings,
        numbers,
        len(known),
        k=config.neighbours,
        nodes=config.affinity.memory + 2 * config.data.batch_size,
        seed=config.seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=HERE / "mining")
    arguments = parser.parse_args()
    arguments.output.mkdir(exist_ok=True)
    for path in arguments.runs:
        found = study_of(Run(path))
        kept = {"recalls": RECALLS, "precision": found}
        (arguments.output / f"{path.name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        for way, by_group in found.items():
            print(f"{path.name}: {way}: {by_group}")


if __name__ == "__main__":
    main()
