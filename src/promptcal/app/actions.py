"""What a user can do, as typed messages that the page sends and the store keeps. Each turns a state into the next."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from promptcal.app import label_state as states
from promptcal.app.label_state import LabelState, Predictions
from promptcal.app.packing import packed, unpacked
from promptcal.errors import LabelError, shorten
from promptcal.runtime.json_model import StrictModel, first_problem

Name = Annotated[str, Field(max_length=4 * states.LONGEST_NAME)]


def _number(images: list[int]) -> str:
    return f"{len(images):,} image{'s' if len(images) != 1 else ''}"


class Assign(StrictModel):
    """Label images as a category."""

    kind: Literal["assign"] = "assign"
    images: list[int]
    category: int

    def apply(self, state: LabelState) -> LabelState:
        return states.assign(state, self.images, self.category)

    def title(self, after: LabelState) -> str:
        return f"label {_number(self.images)} as {shorten(after.categories[self.category].name, 40)}"


class NoneOfThese(StrictModel):
    kind: Literal["none"] = "none"
    images: list[int]

    def apply(self, state: LabelState) -> LabelState:
        return states.none_of_these(state, self.images)

    def title(self, after: LabelState) -> str:
        return f"mark {_number(self.images)} as none of these"


class RemoveLabels(StrictModel):
    kind: Literal["remove"] = "remove"
    images: list[int]

    def apply(self, state: LabelState) -> LabelState:
        return states.remove_labels(state, self.images)

    def title(self, after: LabelState) -> str:
        return f"remove the label of {_number(self.images)}"


class Accept(StrictModel):
    """Label images as the category that they are shown in."""

    kind: Literal["accept"] = "accept"
    images: list[int]

    def apply(self, state: LabelState) -> LabelState:
        return states.accept(state, self.images)

    def title(self, after: LabelState) -> str:
        return f"accept {_number(self.images)}"


class Create(StrictModel):
    kind: Literal["create"] = "create"
    name: Name
    images: list[int]

    def apply(self, state: LabelState) -> LabelState:
        return states.create(state, self.name, self.images)

    def title(self, after: LabelState) -> str:
        return f"create {shorten(self.name, 40)} with {_number(self.images)}"


class Rename(StrictModel):
    kind: Literal["rename"] = "rename"
    category: int
    name: Name

    def apply(self, state: LabelState) -> LabelState:
        return states.rename(state, self.category, self.name)

    def title(self, after: LabelState) -> str:
        return f"name a category {shorten(after.categories[self.category].name, 40)}"


class Merge(StrictModel):
    kind: Literal["merge"] = "merge"
    source: int
    target: int

    def apply(self, state: LabelState) -> LabelState:
        return states.merge(state, self.source, self.target)

    def title(self, after: LabelState) -> str:
        names = [shorten(after.categories[c].name, 40) for c in (self.source, self.target)]
        return f"merge {names[0]} into {names[1]}"


class SplitImages(StrictModel):
    """``parts`` has the number of the part of each image, from 0."""

    kind: Literal["split"] = "split"
    images: list[int]
    parts: list[int]

    def apply(self, state: LabelState) -> LabelState:
        return states.split(state, self.images, self.parts)

    def title(self, after: LabelState) -> str:
        return f"split {_number(self.images)} into {len(set(self.parts))} parts"


class ImportLabels(StrictModel):
    """Labels from a file: image and name; an empty name is "none of these"."""

    kind: Literal["import"] = "import"
    source: Name
    labels: dict[int, str]

    model_config = ConfigDict(strict=False)  # the keys of JSON are text

    def apply(self, state: LabelState) -> LabelState:
        return states.import_labels(state, self.labels)

    def title(self, after: LabelState) -> str:
        return f"import {len(self.labels):,} labels from {shorten(self.source, 40)}"


class AcceptRefit(StrictModel):
    """The predictions of a refit as columns; ``run`` is the run of a new fit, None for a quick refit."""

    kind: Literal["refit"] = "refit"
    names: list[str]
    category: str
    confidence: str
    second: str
    second_confidence: str
    stability: str | None
    run: str | None

    @classmethod
    def of(cls, names: list[str], found: Predictions, run: str | None) -> "AcceptRefit":
        return cls(
            names=names,
            category=packed(found.category, "<i4"),
            confidence=packed(found.confidence, "<f4"),
            second=packed(found.second, "<i4"),
            second_confidence=packed(found.second_confidence, "<f4"),
            stability=None if found.stability is None else packed(found.stability, "<f4"),
            run=run,
        )

    def apply(self, state: LabelState) -> LabelState:
        n = len(state)
        category, second = unpacked(self.category, "<i4", n), unpacked(self.second, "<i4", n)
        if min(category.min(), second.min() + 1) < 0 or max(category.max(), second.max()) >= len(self.names):
            raise LabelError("the refit has a category that it does not name; start it again")
        found = Predictions(
            category,
            unpacked(self.confidence, "<f4", n),
            second,
            unpacked(self.second_confidence, "<f4", n),
            None if self.stability is None else unpacked(self.stability, "<f4", n),
        )
        return states.predict_again(state, self.names, found, self.run)

    def title(self, after: LabelState) -> str:
        return "accept a quick refit" if self.run is None else "accept a new fit"


Action = (
    Assign | NoneOfThese | RemoveLabels | Accept | Create | Rename | Merge | SplitImages | ImportLabels | AcceptRefit
)
FROM_PAGE = ("assign", "none", "remove", "accept", "create", "rename", "merge", "split")
_ADAPTER: TypeAdapter[Any] = TypeAdapter(Annotated[Action, Field(discriminator="kind")])


def parse_action(text: str | bytes, kinds: tuple[str, ...] | None = None) -> Action:
    """An action from JSON; a `LabelError` if it is none, or not of one of these kinds."""
    return _parsed(lambda: _ADAPTER.validate_json(text), kinds)


def _parsed(read: Callable[[], Any], kinds: tuple[str, ...] | None) -> Action:
    try:
        action: Action = read()
    except ValidationError as error:
        raise LabelError(f"this is not an action ({first_problem(error)}); load the page again") from error
    if kinds is not None and action.kind not in kinds:
        raise LabelError(f"the action {action.kind} cannot be sent by a page; use the app")
    return action
