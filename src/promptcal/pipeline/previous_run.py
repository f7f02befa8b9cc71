"""Going on from a finished run with new labels: weights, names and numbers that persist, and what moved.

A person looks at what was found, names a category by labelling a few of its images, and fits again from there. A
category is then still the one of that number and name, unless its images say otherwise.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy.optimize import linear_sum_assignment

from promptcal.config.schema import Config, ModelConfig
from promptcal.data.labels import class_numbers
from promptcal.discovery.partition import Partition
from promptcal.errors import ConfigError, LabelError, RunError
from promptcal.models import ClassifierNetwork, DiscoveryNetwork, ParametricNetwork
from promptcal.pipeline.problem import Problem
from promptcal.run.inference import Assignments, Run
from promptcal.runtime import files


class PreviousRun:
    """The finished run that another goes on from."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.run = Run(path, "cpu")
        self.assignments = self.run.assignments()
        self.cluster_of = dict(zip(self.assignments.paths, self.assignments.clusters.tolist(), strict=True))
        self.label_of = {
            path: name
            for path, name, labelled in zip(
                self.assignments.paths, self.assignments.categories, self.assignments.labelled, strict=True
            )
            if labelled
        }

    @property
    def path(self) -> Path:
        return self.run.path

    def settings(self, method: str | None) -> Config:
        """Those of the run, to change single ones of; a run that trained nothing may be gone on from by any method.

        Not its cache: where to write is for who fits to say, not for a run that may be from elsewhere.
        """
        config, switches = self.run.config, self.run.config.switches
        config = config.model_copy(update={"data": config.data.model_copy(update={"cache": None})})
        if self._has_weights:  # those of its [P] head, too
            switches = switches.model_copy(update={"prompt_head": "from-warmup"})
        elif method not in (None, "kmeans"):
            prompts = {"prompts": ModelConfig.model_fields["prompts"].default}
            config = config.model_copy(update={"model": config.model.model_copy(update=prompts)})
        return config.model_copy(update={"switches": switches})

    @property
    def _has_weights(self) -> bool:
        return self.run.config.method != "kmeans"

    def can_initialize(self, config: Config) -> bool:
        return self._has_weights and config.method != "kmeans"

    def check(self, config: Config, output: Path) -> None:
        """Refuse what the run's weights do not fit, before anything is computed."""
        if output.resolve() == self.path.resolve():
            raise RunError(
                f"--from and --output are both {output}; the earlier run is kept, so choose another --output"
            )
        if not self._has_weights:
            return
        then, now = ({"method": c.method, **_prefixed(c.model.model_dump())} for c in (self.run.config, config))
        for key, value in then.items():
            if now[key] != value and key != "model.train_blocks":
                raise ConfigError(
                    f"{self.path} has {key}={value} and cannot be gone on from with {now[key]}; "
                    "leave the setting as it is, or fit anew without --from"
                )

    def load_into(self, network: DiscoveryNetwork, problem: Problem, n_classes: int) -> None:
        """Its weights; of a classifier, the outputs in the order of the categories they now stand for."""
        state = self.run.network.state_dict()
        if not isinstance(network, ClassifierNetwork):  # one beside the graph starts anew at the clusters
            beside = network.state_dict() if isinstance(network, ParametricNetwork) else {}
            kept = {name: values for name, values in state.items() if not name.startswith("classifier.")}
            network.load_state_dict({**beside, **kept})
        elif network.category_parameters:
            network.load_reordered(state, self._outputs(problem, n_classes))
        else:
            raise ConfigError(
                f"{self.path} is of the method {self.run.config.method}, whose new categories have a network of their "
                "own that cannot become known ones; fit anew without --from, or go on from a run of another method"
            )

    def _outputs(self, problem: Problem, n_classes: int) -> list[int]:
        """The output of the run's classifier for each category, known classes first; -1 for one it did not have."""
        labels, names = problem.label_names(), problem.images.names
        shared = _counts(problem.labels, self.before(names), len(problem.classes), len(self.run.names))
        origin = class_origins(self.run.names, problem.classes, shared)
        gone = {*origin.values(), *map(self.run.names.index, self.merged_categories(labels, names))}
        numbers = [origin.get(i, -1) for i in range(len(problem.classes))]
        numbers += [e for e in range(len(self.run.names)) if e not in gone]
        numbers = [*numbers, *([-1] * n_classes)][:n_classes]
        return [-1 if e < 0 else int(self.run.columns[e]) for e in numbers]

    def merge_labels(
        self, labels: Sequence[str | None], removed_labels: Sequence[bool], names: Sequence[str]
    ) -> list[str | None]:
        """New labels, and for images without one that of the run, unless it is taken back."""
        merged = [
            new if new is not None or is_back else self.label_of.get(name)
            for name, new, is_back in zip(names, labels, removed_labels, strict=True)
        ]
        if self.label_of and not any(merged):
            raise LabelError(f"none of the labelled images of {self.path} is among these; give them, or new --labels")
        return merged

    def merged_categories(self, labels: Sequence[str | None], names: Sequence[str]) -> list[str]:
        """Categories most of whose images are now labelled as others, so that there is one less to be found."""
        numbers, classes = class_numbers(labels)
        before = self.before(names)
        shared = _counts(numbers, before, len(classes), len(self.run.names))
        taken = set(class_origins(self.run.names, classes, shared).values())
        sizes = np.bincount(before[before >= 0], minlength=len(self.run.names))
        gone = (2 * shared.sum(axis=0) > sizes).nonzero()[0]
        return [self.run.names[e] for e in gone if e not in taken]

    def without_merged(self, config: Config, problem: Problem, overrides: Sequence[str], console: Console) -> Config:
        """The settings with as many categories fewer as the labels merge into others, unless ``overrides`` say."""
        merged = self.merged_categories(problem.label_names(), problem.images.names)
        left = max(config.n_classes - len(merged), len(problem.classes))
        if left >= config.n_classes or any(setting.startswith("n_classes=") for setting in overrides):
            return config
        told = f"The labels merge {', '.join(merged)} into others, so {left} categories are sought"
        console.print(f"{told} (--n-classes sets another number)", markup=False, highlight=False, soft_wrap=True)
        return config.model_copy(update={"n_classes": left})

    def unseen_label_mask(self, names: Sequence[str]) -> np.ndarray:
        """Which images' labels the run has not seen in training."""
        held_out = set(self.run.held_out())
        return np.array([name in held_out or name not in self.label_of for name in names])

    def before(self, names: Sequence[str]) -> np.ndarray:
        """The number of the category of each image in the run, -1 for images it did not have."""
        return np.array([self.cluster_of.get(name, -1) for name in names])

    def renumbered(
        self, partition: Partition, classes: list[str], labels: np.ndarray, names: Sequence[str]
    ) -> tuple[Partition, list[str]]:
        """The partition with the run's numbers, and the names of its categories."""
        numbers, categories = numbering(
            self.run.names,
            self.before(names),
            classes,
            labels,
            partition.clusters,
            len(partition.centres),
            self.run.info.get("former_names", ()),
        )
        return partition.reordered(np.argsort(numbers)), categories

    def former_names(self, names: Sequence[str]) -> list[str]:
        """Names that categories had in this run or one before it and have no longer, not to be given again."""
        return sorted({*self.run.names, *self.run.info.get("former_names", ())} - set(names))

    @cached_property
    def digest(self) -> bytes:
        """Of what another run takes from this one."""
        digest = hashlib.sha256()
        for file in (self.run.directory.model_file, self.run.directory.assignments_file):
            with file.open("rb") as content:
                while part := content.read(1 << 24):
                    digest.update(part)
        return digest.digest()

    def changes(self, now: Assignments) -> "Changes":
        return Changes(str(self.path.absolute()), self.run.names, self.before(now.paths), now, len(self.cluster_of))


def numbering(
    earlier: Sequence[str],
    before: np.ndarray,
    classes: Sequence[str],
    labels: np.ndarray,
    clusters: np.ndarray,
    n_clusters: int,
    former_names: Collection[str] = (),
) -> tuple[np.ndarray, list[str]]:
    """The number of each cluster, and the names by number.

    ``earlier`` are the earlier categories' names, ``former_names`` others that must not be given to a new one.
    ``before`` (-1 = not there), ``labels`` (-1 = none) and ``clusters`` are by image, the clusters of the ``classes``
    first.

    A class keeps the number of the category of its name. A class of a new name takes that of the category in which
    most of its labelled images were. The other clusters take, one to one, those of the categories they share most
    images with, and their names. What is left takes what numbers are left.
    """
    n_known = len(classes)
    origin = class_origins(earlier, classes, _counts(labels, before, n_known, len(earlier)))
    shared = _counts(np.where(labels >= 0, -1, clusters), before, n_clusters, len(earlier))
    origin |= _matched(shared, origin)
    numbers = np.array([n if (n := origin.get(i, n_clusters)) < n_clusters else -1 for i in range(n_clusters)])
    free = (n for n in range(n_clusters) if n not in numbers.tolist())
    numbers = np.array([next(free) if n < 0 else n for n in numbers.tolist()])
    taken = {*earlier, *classes, *former_names}
    fresh = (name for i in count(1) if (name := f"new-{i}") not in taken)
    names = [""] * n_clusters
    for i, number in enumerate(numbers):
        names[number] = classes[i] if i < n_known else earlier[origin[i]] if i in origin else next(fresh)
    return numbers, names


def class_origins(earlier: Sequence[str], classes: Sequence[str], shared: np.ndarray) -> dict[int, int]:
    """The earlier category that each class is, if any: that of its name, or in which most of its labelled images were.

    ``shared`` counts labelled images by class and earlier category.
    """
    origin = {i: earlier.index(name) for i, name in enumerate(classes) if name in earlier}
    naming = np.where(shared == shared.max(axis=1, keepdims=True, initial=0), shared, 0)
    return origin | _matched(naming, origin)


def _counts(rows: np.ndarray, columns: np.ndarray, n_rows: int, n_columns: int) -> np.ndarray:
    """How often each pair occurs; -1 on either side does not count."""
    table = np.zeros((n_rows, n_columns), dtype=np.int64)
    both = (rows >= 0) & (columns >= 0)
    np.add.at(table, (rows[both], columns[both]), 1)
    return table


def _matched(shared: np.ndarray, taken: dict[int, int]) -> dict[int, int]:
    """Rows and columns that are not taken, one to one, so that they share most; none that share nothing."""
    shared = shared.copy()
    shared[list(taken)] = 0
    shared[:, list(taken.values())] = 0
    pairs = zip(*linear_sum_assignment(shared, maximize=True), strict=True)
    return {int(i): int(e) for i, e in pairs if shared[i, e] > 0}


@dataclass(frozen=True)
class Changes:
    """What became of the categories of an earlier run. An image has moved if the number of its category is another.

    A number stands for the same category as before if the name is the same or any image stayed under it; what else
    has the number of a category that is no more is a new one.
    """

    start: str
    earlier: list[str]
    before: np.ndarray
    now: Assignments
    n_before: int

    @property
    def moved(self) -> np.ndarray:
        """Positions of the images that moved."""
        return np.flatnonzero((self.before >= 0) & (self.before != self.now.clusters))

    @cached_property
    def _flows(self) -> np.ndarray:
        """Images by earlier category and present one."""
        return _counts(self.before, self.now.clusters, len(self.earlier), len(self.now.names))

    @cached_property
    def _persisting(self) -> list[int]:
        """Numbers that stand for the same category as before."""
        pairs = enumerate(zip(self.earlier, self.now.names, strict=False))
        return [c for c, (old, new) in pairs if old == new or self._flows[c, c]]

    def summary(self) -> dict[str, Any]:
        there = int((self.before >= 0).sum())
        flows = Counter((self.earlier[self.before[i]], self.now.names[self.now.clusters[i]]) for i in self.moved)
        names, persisting = self.now.names, set(self._persisting)
        return {
            "from": self.start,
            "images": there,
            "moved": len(self.moved),
            "added": len(self.now) - there,
            "gone": self.n_before - there,
            "renamed": [
                {"cluster": c, "from": self.earlier[c], "to": names[c]}
                for c in self._persisting
                if self.earlier[c] != names[c]
            ],
            "vanished": [self._vanished(c) for c in range(len(self.earlier)) if c not in persisting],
            "appeared": [{"cluster": c, "name": name} for c, name in enumerate(names) if c not in persisting],
            "flows": [{"from": old, "to": new, "images": n} for (old, new), n in flows.most_common()],
        }

    def _vanished(self, earlier: int) -> dict[str, Any]:
        """A category that is no more, and where more than half of its images are now, if they stayed together."""
        went = self._flows[earlier]
        into = self.now.names[int(went.argmax())] if 2 * went.max(initial=0) > went.sum() else None
        return {"cluster": earlier, "name": self.earlier[earlier], "images": int(went.sum()), "into": into}

    def write(self, table: Path, summary: Path) -> None:
        rows = [
            (
                self.now.paths[i],
                self.before[i],
                self.earlier[self.before[i]],
                self.now.clusters[i],
                self.now.names[self.now.clusters[i]],
                f"{self.now.confidence[i]:.4f}",
                "yes" if self.now.labelled[i] else "no",
            )
            for i in self.moved
        ]
        header = ["path", "from_cluster", "from_name", "to_cluster", "to_name", "confidence", "labelled"]
        files.write_csv(table, header, rows)
        files.write_json(summary, self.summary())


def _prefixed(model: dict[str, Any]) -> dict[str, Any]:
    return {f"model.{key}": value for key, value in model.items()}
