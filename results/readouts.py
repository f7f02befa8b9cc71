"""Other ways to read a trained PromptCAL run, on the same weights: whose weights, which tokens and views, k-means or
classifier.

    python results/readouts.py BENCHMARK --root DATA RUN...

Each run needs its checkpoint of the last epoch. What is found is printed and kept in `results/readouts/NAME.json`, for
each read-out an accuracy for each seed of k-means: the same weights give other clusters with other starts.
"""

import argparse
import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.data import StreamedView, View
from promptcal.data.benchmarks import benchmark
from promptcal.data.loading import read, view_of
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.models import ParametricNetwork, ProjectionNetwork
from promptcal.pipeline.problem import Problem
from promptcal.run.inference import RunDirectory, build_network, stored_side
from promptcal.runtime.device import choose_device, choose_dtype, device_context
from promptcal.runtime.files import read_torch
from promptcal.runtime.seeds import derive_seed
from promptcal.training.checkpoints import load_trained

HERE = Path(__file__).parent


@torch.no_grad()
def tokens_of(network: ProjectionNetwork, view: View | StreamedView, n: int) -> dict[str, Tensor]:
    """The embeddings of every image: the class token, its mean with the mirror image's, both tokens."""
    parts, mirrored = [], []
    for views in view.centres(torch.arange(n), 512):
        parts.append(network.eval().vit(views))
        mirrored.append(F.normalize(network.vit(views.flip(-1)).cls.float(), dim=1))
    found = {"cls": F.normalize(torch.cat([part.cls for part in parts]).float(), dim=1)}
    found["cls, both sides"] = F.normalize(found["cls"] + torch.cat(mirrored), dim=1)
    prompts = [part.prompt for part in parts if part.prompt is not None]
    if prompts:
        prompt = F.normalize(torch.cat(prompts).float(), dim=1)
        found["cls and [P]"] = F.normalize(torch.cat([found["cls"], prompt], dim=1), dim=1)
    return found


def readouts(
    problem: Problem, directory: RunDirectory, cache: Path | None, repeats: int, only: Collection[str] = ()
) -> dict[str, list[dict[str, float]]]:
    config = directory.config()
    clustering, device = config.clustering, choose_device(config.device)
    found: dict[str, list[dict[str, float]]] = {}
    with device_context(device, choose_dtype(config.precision, device)):
        network = build_network(config, len(problem.classes), pretrained=True).to(device)
        assert isinstance(network, ProjectionNetwork)
        network.vit.set_compute_dtype(choose_dtype(config.precision, device))
        resize = stored_side(config, network.vit)
        store, _, _ = read(
            problem.images,
            resize,
            store="auto",
            cache=cache,
            beside=directory.path,
            skip_unreadable=False,
            on_progress=lambda done: None,
        )
        view = view_of(store, *network.vit.preprocessing, resize=resize, device=device)
        state = read_torch(directory.checkpoints_folder / "last.pt")
        for whose, weights in (("student", state["network"]), ("teacher", state["stage_state"]["teacher"])):
            if only and not any(name.startswith(f"{whose},") for name in only):
                continue
            load_trained(network, weights)
            tokens = tokens_of(network, view, len(problem.images))
            for name, features in tokens.items():
                if only and f"{whose}, {name}" not in only:
                    continue
                for repeat in range(repeats):
                    seed = derive_seed(config.seed, "kmeans", *[repeat] * bool(repeat))  # the first is the run's own
                    kmeans = SemiSupervisedKMeans(
                        config.n_classes, clustering.n_init, clustering.max_iter, clustering.tol, random_state=seed
                    )
                    accuracy = problem.score(kmeans.fit(features, problem.labels).labels_)
                    found.setdefault(f"{whose}, {name}", []).append(asdict(accuracy))
            if isinstance(network, ParametricNetwork) and (not only or f"{whose}, classifier" in only):
                with torch.no_grad():
                    chosen = network.classifier(tokens["cls"]).argmax(dim=1)
                found[f"{whose}, classifier"] = [asdict(problem.score(chosen.cpu().numpy()))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--root", help="folder with the data sets")
    parser.add_argument("--cache", type=Path, help="folder of decoded images")
    parser.add_argument("--repeats", type=int, default=5, help="seeds of k-means")
    parser.add_argument(
        "--only", action="append", default=[], help='a read-out, such as "student, cls"; all if not given'
    )
    parser.add_argument("--output", type=Path, default=HERE / "readouts")
    arguments = parser.parse_args()
    data = benchmark(arguments.benchmark, arguments.root, False)
    problem = Problem.of(data.train, data.labels(), [*data.truth()])
    arguments.output.mkdir(exist_ok=True)
    for run in arguments.runs:
        found = readouts(problem, RunDirectory(run), arguments.cache, arguments.repeats, arguments.only)
        missing = [name for name in arguments.only if name not in found]
        if missing:
            raise SystemExit(f"{run.name} has no read-out {', '.join(missing)}")
        kept = arguments.output / f"{run.name}.json"
        before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        kept.write_text(json.dumps({**before, **found}, indent=1) + "\n", encoding="utf-8")
        for name, accuracies in found.items():
            means = [100 * mean(a[key] for a in accuracies) for key in ("all", "known", "new")]
            print(f"{run.name}: {name}: " + " / ".join(f"{value:.1f}" for value in means))


if __name__ == "__main__":
    main()
