"""The labels of a run's images while a user gives them: an immutable state that actions turn into the next one.

Every image has a predicted category, that of the run or of the last accepted refit, and may have a label: a category,
or "none of these". Categories keep their numbers; one that was merged into another stays in the list, without images.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from promptcal.data.labels import class_name
from promptcal.errors import LabelError, shorten
from promptcal.run.assignments import Assignments

NO_LABEL, NONE_OF_THESE = -1, -2
UNLABELLED, GIVEN, LABELLED, NONE = range(4)  # what `LabelState.status` says
LONGEST_NAME = 200  # characters


class NameTakenError(LabelError):
    """Another category has the name, in any letter case; ``category`` is its number."""

    def __init__(self, name: str, category: int) -> None:
        super().__init__(f"there is a category {shorten(name)!r} already; choose another name, or merge the categories")
        self.category = category


@dataclass(frozen=True)
class Category:
    """``known``: it had labels in the run. ``confirmed``: the user named, created, merged or split it, so all of its
    images count as labelled. ``merged_into`` is the category that its images went to."""

    name: str
    known: bool = False
    confirmed: bool = False
    merged_into: int | None = None


@dataclass(frozen=True)
class Predictions:
    """The category of each image without the user's labels, its probability, and the second-best category (-1: none).

    ``stability``: see `Assignments`; None if the run has none.
    """

    category: np.ndarray
    confidence: np.ndarray
    second: np.ndarray
    second_confidence: np.ndarray
    stability: np.ndarray | None


@dataclass(frozen=True)
class LabelState:
    """``labels`` are a category, `NO_LABEL` or `NONE_OF_THESE` by image; ``mine`` are those that the user gave here.
    ``run`` is the run whose fit was accepted last (None: the one that is served). ``former_names`` are not given to
    other categories. Arrays are never changed in place.
    """

    categories: tuple[Category, ...]
    predictions: Predictions
    labels: np.ndarray
    mine: np.ndarray
    run: str | None = None
    former_names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, found: Assignments) -> "LabelState":
        """The state of a finished run."""
        return cls(
            tuple(Category(name, known) for name, known in zip(found.names, found.known, strict=True)),
            Predictions(
                found.clusters.astype(np.int32),
                found.confidence.astype(np.float32),
                found.second.astype(np.int32),
                found.second_confidence.astype(np.float32),
                None if found.stability is None else found.stability.astype(np.float32),
            ),
            np.where(found.labelled, found.clusters, NO_LABEL).astype(np.int32),
            np.zeros(len(found), dtype=bool),
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def category(self) -> np.ndarray:
        """The category that each image is shown in; -1 for "none of these"."""
        shown = np.where(self.labels == NO_LABEL, self.predictions.category, self.labels)
        return np.where(self.labels == NONE_OF_THESE, -1, shown).astype(np.int32)

    @property
    def status(self) -> np.ndarray:
        status = np.where(self.labels >= 0, np.where(self.mine, LABELLED, GIVEN), UNLABELLED)
        return np.where(self.labels == NONE_OF_THESE, NONE, status).astype(np.uint8)

    @property
    def active(self) -> list[int]:
        """The numbers of the categories that were not merged into another."""
        return [c for c, category in enumerate(self.categories) if category.merged_into is None]

    def named(self, name: str, *, other_than: int = -1) -> int | None:
        """The category with this name in any letter case."""
        folded = name.casefold()
        return next((c for c in self.active if c != other_than and self.categories[c].name.casefold() == folded), None)

    def label_names(self) -> list[str | None]:
        """The label of each image as a label file has it: "" removes a label, None is no label.

        Images of a confirmed category have its name; a prediction that nobody confirmed is not a label.
        """
        names = [category.name for category in self.categories]
        counts = [category.confirmed and not category.known for category in self.categories]
        return [
            "" if label == NONE_OF_THESE else names[label] if label >= 0 else names[found] if counts[found] else None
            for label, found in zip(self.labels.tolist(), self.predictions.category.tolist(), strict=True)
        ]


def checked_name(name: str) -> str:
    """A name without spaces around it; a `LabelError` if it is empty, too long or not text."""
    found = class_name(name)
    if found is None:
        raise LabelError("a category needs a name (not empty, not -1); type one")
    if len(found) > LONGEST_NAME:
        raise LabelError(f"a name may have {LONGEST_NAME} characters, not {len(found)}; choose a shorter one")
    return found


def checked_images(state: LabelState, images: Sequence[int]) -> np.ndarray:
    """Positions of images, each once."""
    if not len(images):
        raise LabelError("no image is selected; select some first")
    lowest, highest = min(images), max(images)
    if lowest < 0 or highest >= len(state):
        wrong = shorten(highest if lowest >= 0 else lowest)
        raise LabelError(f"there is no image number {wrong}; load the page again")
    return np.unique(np.asarray(images, dtype=np.int64))


def checked_category(state: LabelState, category: int) -> int:
    if not 0 <= category < len(state.categories) or state.categories[category].merged_into is not None:
        raise LabelError(f"there is no category number {category} any more; choose another")
    return category


def label(state: LabelState, images: np.ndarray, values: np.ndarray | int) -> LabelState:
    """The images with these labels."""
    labels, mine = state.labels.copy(), state.mine.copy()
    labels[images] = values
    mine[images] = True
    return replace(state, labels=labels, mine=mine)


def assign(state: LabelState, images: Sequence[int], category: int) -> LabelState:
    return label(state, checked_images(state, images), checked_category(state, category))


def none_of_these(state: LabelState, images: Sequence[int]) -> LabelState:
    return label(state, checked_images(state, images), NONE_OF_THESE)


def remove_labels(state: LabelState, images: Sequence[int]) -> LabelState:
    """The images go back to their predicted category."""
    return label(state, checked_images(state, images), NO_LABEL)


def accept(state: LabelState, images: Sequence[int]) -> LabelState:
    """The images get the category that they are shown in as label; images in none are left out."""
    chosen = checked_images(state, images)
    shown = state.category[chosen]
    return label(state, chosen[shown >= 0], shown[shown >= 0])


def create(state: LabelState, name: str, images: Sequence[int]) -> LabelState:
    name = checked_name(name)
    taken = state.named(name)
    if taken is not None:
        raise NameTakenError(name, taken)
    chosen = checked_images(state, images)
    added = replace(state, categories=(*state.categories, Category(name, confirmed=True)))
    return label(added, chosen, len(state.categories))


def rename(state: LabelState, category: int, name: str) -> LabelState:
    name = checked_name(name)
    taken = state.named(name, other_than=checked_category(state, category))
    if taken is not None:
        raise NameTakenError(name, taken)
    former = state.former_names | {state.categories[category].name}
    return _with_category(replace(state, former_names=former), category, name=name, confirmed=True)


def merge(state: LabelState, source: int, target: int) -> LabelState:
    """All images of ``source`` go to ``target``. If that is a known class, they get its label, because the predicted
    images of a known class do not count as labelled."""
    if checked_category(state, source) == checked_category(state, target):
        raise LabelError("a category cannot be merged into itself; choose another")
    found, moved = state.predictions, state.category == source
    predictions = replace(
        found, category=_moved(found.category, source, target), second=_moved(found.second, source, target)
    )
    labels, mine = _moved(state.labels, source, target), state.mine | (state.labels == source)
    if state.categories[target].known:
        labels, mine = np.where(moved, target, labels).astype(np.int32), mine | moved
    merged = replace(state, predictions=predictions, labels=labels, mine=mine)
    merged = _with_category(merged, source, merged_into=target)
    return _with_category(merged, target, confirmed=True)


def split(state: LabelState, images: Sequence[int], parts: Sequence[int]) -> LabelState:
    """The images go to new categories, one for each part. If they are a whole category, part 0 keeps it."""
    if len(images) != len(parts):
        raise LabelError(f"{len(parts)} parts do not fit {len(images)} images; load the page again")
    order = checked_images(state, images)
    if len(order) < len(images):
        raise LabelError("an image was given twice; load the page again")
    if not all(0 <= number < len(parts) for number in parts):
        raise LabelError("a split needs two parts or more, numbered from 0; make the preview again")
    part = np.empty(len(order), dtype=np.int64)
    part[np.searchsorted(order, np.asarray(images))] = parts
    numbers = np.unique(part)
    if numbers.tolist() != list(range(len(numbers))) or len(numbers) < 2:
        raise LabelError("a split needs two parts or more, numbered from 0; make the preview again")
    whole = _whole_category(state, order)
    fresh = fresh_names(state, len(numbers) - (whole is not None))
    added = tuple(Category(name, confirmed=True) for name in fresh)
    targets = np.arange(len(numbers)) + len(state.categories) - (whole is not None)
    if whole is not None:
        targets[0] = whole
    category, labels, mine = state.predictions.category.copy(), state.labels.copy(), state.mine.copy()
    is_labelled = labels[order] >= 0
    category[order] = targets[part]
    labels[order] = np.where(
        is_labelled, targets[part], NO_LABEL
    )  # also of "none of these": a split is for all of them
    mine[order] |= is_labelled
    divided = replace(
        state,
        categories=(*state.categories, *added),
        predictions=replace(state.predictions, category=category),
        labels=labels,
        mine=mine,
    )
    return divided if whole is None else _with_category(divided, whole, confirmed=True)


def import_labels(state: LabelState, labels: Mapping[int, str]) -> LabelState:
    """Labels by image, from a file; "" is none of these. Names without a category become new ones."""
    images = checked_images(state, list(labels))
    names = [labels[i] and checked_name(labels[i]) for i in images.tolist()]
    categories = list(state.categories)
    numbers = {"": NONE_OF_THESE}
    for name in names:
        if name not in numbers:
            found = state.named(name)
            numbers[name] = len(categories) if found is None else found
            if found is None:
                state = replace(state, categories=(*categories, Category(name, confirmed=True)))
                categories = list(state.categories)
    return label(state, images, np.array([numbers[name] for name in names], dtype=np.int32))


def predict_again(state: LabelState, names: Sequence[str], found: Predictions, run: str | None) -> LabelState:
    """The predictions of a refit; ``names`` are its categories by number, some of which may be new."""
    categories, numbers = list(state.categories), []
    for name in names:
        known = state.named(name)
        numbers.append(len(categories) if known is None else known)
        if known is None:
            categories.append(Category(name))
    number = np.array([*numbers, -1], dtype=np.int32)  # -1 stays -1
    predictions = replace(found, category=number[found.category], second=number[found.second])
    return replace(state, categories=tuple(categories), predictions=predictions, run=run or state.run)


def fresh_names(state: LabelState, n: int) -> list[str]:
    """new-1, new-2, ...: names that no category has or had."""
    taken = {name.casefold() for name in (*(category.name for category in state.categories), *state.former_names)}
    unused = (name for i in count(1) if (name := f"new-{i}") not in taken)
    return [next(unused) for _ in range(n)]


def changed_images(before: LabelState, after: LabelState) -> np.ndarray:
    """The images whose label or prediction differs."""
    same = (before.labels == after.labels) & (before.mine == after.mine)
    old, new = before.predictions, after.predictions
    if old is not new:
        same &= (old.category == new.category) & (old.second == new.second) & (old.confidence == new.confidence)
        same &= old.second_confidence == new.second_confidence
    return np.flatnonzero(~same)


def _moved(numbers: np.ndarray, source: int, target: int) -> np.ndarray:
    return np.where(numbers == source, target, numbers).astype(np.int32)


def _with_category(state: LabelState, number: int, **changes: object) -> LabelState:
    categories = list(state.categories)
    categories[number] = replace(categories[number], **changes)  # type: ignore[arg-type]
    return replace(state, categories=tuple(categories))


def _whole_category(state: LabelState, images: np.ndarray) -> int | None:
    """The category, if the images are all those of one category."""
    shown = state.category
    counts = Counter(shown[images].tolist())
    only = next(iter(counts))
    return only if len(counts) == 1 and only >= 0 and int((shown == only).sum()) == len(images) else None
