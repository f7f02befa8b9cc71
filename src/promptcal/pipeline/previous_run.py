"""Continue a finished run with new labels: its weights, category names and numbers persist, changes are recorded.

The user looks at the clusters, names some by labelling a few of their images, and fits again.
"""

import os
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcal.config import Config, flatten
from promptcal.data.labels import class_numbers
from promptcal.discovery.partition import Partition
from promptcal.errors import ConfigError, LabelError, RunError
from promptcal.methods import METHODS
from promptcal.metrics import contingency_table
from promptcal.models import DiscoveryNetwork
from promptcal.pipeline.continuation import Continuation, category_targets, cluster_means
from promptcal.pipeline.matching import class_origins, kept_numbers, match_free_pairs
from promptcal.pipeline.problem import Problem
from promptcal.run.assignments import Assignments
from promptcal.run.changes import CategoryLoss, Changes
from promptcal.run.inference import Run
from promptcal.runtime.files import file_digest


class PreviousRun:
    """The finished run that another one continues."""

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

    def settings(self, method: str) -> dict[str, Any]:
        """The settings of the run, to continue it with ``method``.

        `data.cache` is left out, because a run from an untrusted source must not decide where to write, and
        `selection.keep`, because the new command says which result it keeps. If the run
        trained nothing and another method is chosen, the values that its own method set are left out, too.
        """
        own = self.run.method
        if own.trains and method != own.name:
            raise self._does_not_fit("method", own.name, method)
        settings = self.run.config.model_dump()
        settings["data"].pop("cache")
        settings["selection"].pop("keep")
        settings["n_classes"] = len(self.run.names)  # `promptcal name` can merge some
        if method != own.name:
            del settings["method"]
            for section, values in own.presets.get("", {}).items():
                for key in values:
                    del settings[section][key]
        return settings

    def can_initialize(self, config: Config) -> bool:
        """Whether training starts from the run's weights."""
        return self.run.method.trains and METHODS[config.method].trains

    def check(self, config: Config, output: Path) -> None:
        """Reject settings that the run's weights do not fit, before anything is computed."""
        if os.path.realpath(output) == os.path.realpath(self.path):
            raise RunError(
                f"--from and --output are both {output}; the previous run is kept, so choose another --output"
            )
        if not self.run.method.trains:
            return
        then, now = (flatten(c.model_dump(include={"model"})) for c in (self.run.config, config))
        for key, value in then.items():
            if now[key] != value and key != "model.train_blocks":
                raise self._does_not_fit(key, value, now[key])

    def _does_not_fit(self, key: str, then: Any, now: Any) -> ConfigError:
        return ConfigError(
            f"{self.path} has {key}={then} and cannot be continued with {now}; keep that setting, or fit without --from"
        )

    def load_into(self, network: DiscoveryNetwork, problem: Problem, n_classes: int) -> None:
        """Load the weights of the run; the outputs of a classifier are put into the order of the new categories."""
        network.load_previous(self.run.network.state_dict(), lambda: self._outputs(problem, n_classes))

    def has_outputs(self, problem: Problem, n_classes: int) -> bool:
        """Whether a classifier has an output for each category already."""
        return -1 not in self._outputs(problem, n_classes)

    def _outputs(self, problem: Problem, n_classes: int) -> list[int]:
        """The output of the run's classifier for each category, known classes first; -1 for a new one."""
        labels, names = problem.label_names(), problem.images.names
        shared = contingency_table(
            problem.labels, self.clusters_before(names), len(problem.classes), len(self.run.names)
        )
        origin = class_origins(self.run.names, problem.classes, shared)
        gone = {*origin.values(), *map(self.run.names.index, self.merged_and_added(labels, names)[0])}
        numbers = [origin.get(i, -1) for i in range(len(problem.classes))]
        numbers += [e for e in range(len(self.run.names)) if e not in gone]
        numbers = [*numbers, *([-1] * n_classes)][:n_classes]
        return [-1 if e < 0 else int(self.run.columns[e]) for e in numbers]

    def merge_labels(
        self, labels: Sequence[str | None], removed: Sequence[bool], names: Sequence[str]
    ) -> list[str | None]:
        """New labels, and the run's label for images without a new one, unless it is removed."""
        merged = [
            new if new is not None or is_removed else self.label_of.get(name)
            for name, new, is_removed in zip(names, labels, removed, strict=True)
        ]
        if self.label_of and not any(merged):
            raise LabelError(f"none of the labelled images of {self.path} is among these; give them, or new --labels")
        return merged

    def merged_and_added(self, labels: Sequence[str | None], names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Categories most of whose images now have the label of another category, and labels without a category."""
        numbers, classes = class_numbers(labels)
        before = self.clusters_before(names)
        shared = contingency_table(numbers, before, len(classes), len(self.run.names))
        origins = class_origins(self.run.names, classes, shared)
        sizes = np.bincount(before[before >= 0], minlength=len(self.run.names))
        gone = (2 * shared.sum(axis=0) > sizes).nonzero()[0]
        merged = [self.run.names[e] for e in gone if e not in origins.values()]
        return merged, [name for number, name in enumerate(classes) if number not in origins]

    def unused_labels(self, problem: Problem) -> np.ndarray:
        """Which images have a label that the weights of the run were not trained with."""
        if not self.run.method.trains:
            return problem.labels >= 0
        held_out = self.run.directory.held_out()
        unused = {*held_out.paths, *held_out.unused}
        is_unused = [name in unused or name not in self.label_of for name in problem.images.names]
        return (problem.labels >= 0) & np.array(is_unused)

    def clusters_before(self, names: Sequence[str]) -> np.ndarray:
        """The cluster of each image in the run, -1 for images it did not have."""
        return np.array([self.cluster_of.get(name, -1) for name in names])

    def continuation(
        self,
        problem: Problem,
        features: Tensor,
        released: Collection[str],
        n_classes: int,
        *,
        keep: bool,
        trained: bool,
    ) -> Continuation:
        """Where the run's categories continue, in the embeddings of the new network. ``released`` are the names of
        images that the user marked as wrong, ``trained`` says whether the network has other weights than the run's."""
        before, labels = self.clusters_before(problem.images.names), problem.labels
        shape = len(problem.classes), len(self.run.names)
        centroids = [
            torch.nn.functional.normalize(cluster_means(features, of, n), dim=1)
            for of, n in zip((labels, before), shape, strict=True)
        ]
        targets = category_targets(
            self.run.names,
            problem.classes,
            contingency_table(labels, before, *shape),
            np.bincount(before[before >= 0], minlength=len(self.run.names)),
            (centroids[0] @ centroids[1].T).cpu().numpy(),
            n_classes,
        )
        marked = np.array([name in released for name in problem.images.names])
        pairs = zip(problem.images.names, problem.label_names(), strict=True)
        is_new = np.array([label is not None and self.label_of.get(name) != label for name, label in pairs], dtype=bool)
        return Continuation.of(
            before, labels, marked, targets, n_classes, features, keep=keep, trained=trained, has_new_label=is_new
        )

    def renumber(self, partition: Partition, problem: Problem) -> tuple[Partition, list[str]]:
        """The partition with the run's cluster numbers, and the names of its categories."""
        numbers, categories = numbering(
            self.run.names,
            self.clusters_before(problem.images.names),
            problem.classes,
            problem.labels,
            partition.clusters,
            len(partition.centroids),
            self.run.info.former_names,
        )
        return partition.reordered(np.argsort(numbers)), categories

    def former_names(self, names: Sequence[str]) -> list[str]:
        """Names that no category has any more; no other category may get them."""
        return sorted({*self.run.names, *self.run.info.former_names} - set(names))

    @cached_property
    def digest(self) -> bytes:
        """A digest of everything that a continued run takes from this run."""
        directory = self.run.directory
        return "".join(map(file_digest, (directory.model_file, directory.assignments_file))).encode()

    def has_labels(self, labels: Sequence[str | None], released: Collection[str], names: Sequence[str]) -> bool:
        """Whether these labels (merged with the run's) are those of the run, and no image of it is marked as wrong."""
        same = all(self.label_of.get(name) == label for name, label in zip(names, labels, strict=True))
        return same and not any(name in self.cluster_of for name in released)

    def confirms(self, labels: Sequence[str | None], released: Collection[str], names: Sequence[str]) -> bool:
        """Whether these labels (merged with the run's) only confirm or name categories: the images are those of the
        run, none is marked as wrong, and each label is that of the image's own category."""
        numbers, classes = class_numbers(labels)
        before, labelled = self.clusters_before(names), numbers >= 0
        shared = contingency_table(numbers, before, len(classes), len(self.run.names))
        origins = class_origins(self.run.names, classes, shared)
        own = np.array([origins.get(number, -1) for number in numbers[labelled].tolist()])
        return not released and bool((before >= 0).all() and (own == before[labelled]).all())

    def changes(self, now: Assignments, losses: list[CategoryLoss]) -> Changes:
        previous = self.clusters_before(now.paths)
        return Changes(str(self.path.absolute()), self.run.names, previous, now, len(self.cluster_of), losses)


def numbering(
    previous_names: Sequence[str],
    before: np.ndarray,
    classes: Sequence[str],
    labels: np.ndarray,
    clusters: np.ndarray,
    n_clusters: int,
    former_names: Collection[str] = (),
) -> tuple[np.ndarray, list[str]]:
    """The number of each cluster, and the category names by number.

    ``previous_names`` are the previous categories, ``former_names`` other names that must not be reused.
    ``before`` (-1 = new image), ``labels`` (-1 = unlabelled) and ``clusters`` are by image; the clusters of the
    ``classes`` come first.

    A class keeps the number of the category with its name. A class with a new name takes the number of the category
    that had most of its labelled images. The other clusters are matched one to one with the categories they share
    most images with, and take their numbers and names. Clusters without a match take the numbers that remain.
    """
    n_known = len(classes)
    origin = class_origins(previous_names, classes, contingency_table(labels, before, n_known, len(previous_names)))
    shared = contingency_table(np.where(labels >= 0, -1, clusters), before, n_clusters, len(previous_names))
    origin |= match_free_pairs(shared, origin)
    numbers = kept_numbers(origin, n_clusters)
    taken = {*previous_names, *classes, *former_names}
    fresh = (name for i in count(1) if (name := f"new-{i}") not in taken)
    names = [""] * n_clusters
    for i, number in enumerate(numbers):
        names[number] = classes[i] if i < n_known else previous_names[origin[i]] if i in origin else next(fresh)
    return numbers, names
