"""A simulated user who labels a run in rounds, as a person does with the report, and the accuracy after each round.

In a round the user names the largest discovered categories by the class of most of their images and marks the other
images in them as wrong, as the report does: every other image of the category gets the name, so two categories with the
same name are merged. Without enough categories to name, the user labels the images with the lowest confidence.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from promptcal.metrics import discovery_accuracy
from promptcal.run import Assignments, Run

LabelFile = dict[str, "str | None"]  # path -> label; None: marked as wrong


@dataclass(frozen=True)
class Round:
    """One round: how many labels were given, and accuracies (in %) on the ``untouched`` images, which no label file
    has listed so far: of the ``first`` run, and ``before`` and ``after`` the round.

    ``gain`` is by the best matching of categories and classes, ``named_gain`` by name (`named_accuracy`). The matching
    can pair the category named cat with dogs. Then a dog that moves from cat to dog counts as a loss, though it is
    right now. By name, a category that gets another name counts as a change of all its images, though none has moved.

    ``unseen_first`` and ``unseen_after`` are the accuracies of the first run and after this round on the images that
    the user never labels, the same ones in every round (nan if there are none). ``kept`` says which result the fit
    kept: the "first" one or the "trained" one (None if nothing was trained).
    """

    number: int
    labels: int
    untouched: int
    first: float
    before: float
    after: float
    named_before: float
    named_after: float
    unseen_first: float
    unseen_after: float
    categories: int
    kept: str | None

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def named_gain(self) -> float:
        return self.named_after - self.named_before


class SimulatedUser:
    """Knows the true class of each image; a share of the labels given is wrong. ``unseen`` are never labelled."""

    def __init__(
        self,
        truth: Mapping[str, str],
        *,
        wrong_labels: float = 0.0,
        clusters: int = 2,
        images: int = 30,
        images_per_cluster: int | None = None,
        unseen: Collection[str] = (),
        seed: int = 0,
    ) -> None:
        self.truth = truth
        self.classes = sorted(set(truth.values()))
        self.wrong_labels = wrong_labels
        self.clusters = clusters
        self.images = images
        self.images_per_cluster = images_per_cluster
        self.unseen = frozenset(unseen)
        self.random = np.random.default_rng(seed)

    def labels(self, found: Assignments) -> LabelFile:
        """What the user downloads after looking at a run; ``images_per_cluster`` labels only a part of each category
        that is named, and doubtful images as well."""
        given: LabelFile = {}
        named = self.nameable(found)[: self.clusters]
        for name, all_members in named:
            members = np.array([i for i in all_members if found.paths[i] not in self.unseen], dtype=int)
            if self.images_per_cluster is not None:
                members = self.random.permutation(members)[: self.images_per_cluster]
            given |= {found.paths[i]: name if self.truth[found.paths[i]] == name else None for i in members}
        if len(named) < self.clusters or self.images_per_cluster is not None:
            doubtful = [i for i in np.argsort(found.confidence, kind="stable") if not found.labelled[i]]
            doubtful = [i for i in doubtful if found.paths[i] not in given and found.paths[i] not in self.unseen]
            doubtful = doubtful[: self.images]
            given |= {found.paths[i]: self.truth[found.paths[i]] for i in doubtful}
        return {path: None if label is None else self._mistaken(label) for path, label in given.items()}

    def nameable(self, found: Assignments) -> list[tuple[str, np.ndarray]]:
        """Name and images of each discovered category with a class that most of its images have, largest first. At
        least one of the images can be labelled."""
        categories = []
        for cluster in np.flatnonzero(~np.array(found.known)):
            members = np.flatnonzero(found.clusters == cluster)
            counts = Counter(self.truth[found.paths[i]] for i in members)
            can_label = any(found.paths[i] not in self.unseen for i in members)
            if can_label and 2 * max(counts.values()) >= len(members):
                categories.append((counts.most_common(1)[0][0], members))
        return sorted(categories, key=lambda category: -len(category[1]))

    def _mistaken(self, label: str) -> str:
        others = [name for name in self.classes if name != label]
        return str(self.random.choice(others)) if others and self.random.random() < self.wrong_labels else label


def accuracy(truth: Mapping[str, str], found: Assignments, paths: Collection[str]) -> float:
    """In per cent, on some images, with the best matching of categories and classes; nan without images."""
    chosen = [i for i, path in enumerate(found.paths) if path in paths]
    if not chosen:
        return math.nan
    return 100 * discovery_accuracy([truth[found.paths[i]] for i in chosen], found.clusters[chosen], []).all


def named_accuracy(truth: Mapping[str, str], found: Assignments, paths: set[str]) -> float:
    """In per cent, on some images: a named category is right for images of the class with its name, the categories
    without a name are matched with classes."""
    chosen = [i for i, path in enumerate(found.paths) if path in paths]
    named = [i for i in chosen if found.known[found.clusters[i]]]
    right = sum(truth[found.paths[i]] == found.names[found.clusters[i]] for i in named)
    unnamed = [i for i in chosen if not found.known[found.clusters[i]]]
    if unnamed:
        classes = [truth[found.paths[i]] for i in unnamed]
        right += len(unnamed) * discovery_accuracy(classes, found.clusters[unnamed], []).all
    return 100 * right / len(chosen)


def kept_result(run: Run) -> str | None:
    """Whether a fit kept its first result or that of training; None if it compared none."""
    results = run.directory.results()
    return None if results is None or results.comparison is None else results.comparison.kept


def label_in_rounds(
    run: Run, user: SimulatedUser, fit_again: Callable[[Run, LabelFile, int], Run], rounds: int
) -> Iterator[Round]:
    """Label a run and continue it, again and again."""
    found = first = run.assignments()
    untouched = {path for path, labelled in zip(found.paths, found.labelled, strict=True) if not labelled}
    for number in range(1, rounds + 1):
        given = user.labels(found)
        untouched -= given.keys()
        run = fit_again(run, given, number)
        now = run.assignments()
        yield Round(
            number=number,
            labels=sum(label is not None for label in given.values()),
            untouched=len(untouched),
            first=accuracy(user.truth, first, untouched),
            before=accuracy(user.truth, found, untouched),
            after=accuracy(user.truth, now, untouched),
            named_before=named_accuracy(user.truth, found, untouched),
            named_after=named_accuracy(user.truth, now, untouched),
            unseen_first=accuracy(user.truth, first, user.unseen),
            unseen_after=accuracy(user.truth, now, user.unseen),
            categories=len(now.names),
            kept=kept_result(run),
        )
        found = now
