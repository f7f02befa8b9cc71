"""`changes.json` and `changes.csv`: how the categories of a run differ from those of the run it started from."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from promptcal.metrics import contingency_table
from promptcal.run.assignments import Assignments
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel

COLUMNS = ("path", "from_cluster", "from_name", "to_cluster", "to_name", "confidence", "labelled")


class RenamedCategory(JSONModel):
    cluster: int
    old_name: str
    new_name: str


class RemovedCategory(JSONModel):
    """``into`` is the category that more than half of its images moved to, if there is one."""

    cluster: int
    name: str
    images: int
    into: str | None


class AddedCategory(JSONModel):
    cluster: int
    name: str


class Flow(JSONModel):
    """How many images moved from one category to another."""

    source: str
    target: str
    images: int


class CategoryLoss(JSONModel):
    """A confirmed category (known, named or merged by the user) that lost more than a few percent of its images.

    ``images`` are those that it had, without the ones that the new labels move; ``lost`` of them are nearer to other
    categories, counted in ``into``. ``kept``: they were kept (`--keep-confirmed`).
    """

    name: str
    images: Annotated[int, Field(ge=1)]
    lost: int
    into: dict[str, int]
    kept: bool

    def message(self) -> str:
        into = ", ".join(f"{n} to {name}" for name, n in self.into.items())
        share = f"{self.lost} of {self.images} images ({self.lost / self.images:.0%})"
        if self.kept:
            return f"the confirmed category {self.name} kept {share} that would have moved ({into})"
        return f"the confirmed category {self.name} lost {share}: {into}"


class ChangeSummary(JSONModel):
    """``images`` are those of both runs, of which ``moved`` changed their category; ``added`` and ``missing`` are the
    images of only one of the runs. ``confirmed_losses``: see `CategoryLoss`."""

    previous_run: str
    images: int
    moved: int
    added: int
    missing: int
    renamed: list[RenamedCategory]
    removed_categories: list[RemovedCategory]
    added_categories: list[AddedCategory]
    flows: list[Flow]
    confirmed_losses: list[CategoryLoss] = Field(default_factory=list)


@dataclass(frozen=True)
class Changes:
    """The categories of a run compared with those of the previous run.

    ``previous_clusters`` is the previous cluster of each image, -1 for images that the previous run did not have. An
    image has moved if its cluster number changed. A cluster number stands for the same category in both runs if the
    name is the same or if any image kept that number; otherwise the category was removed or added.
    """

    previous_run: str
    previous_names: list[str]
    previous_clusters: np.ndarray
    now: Assignments
    n_previous_images: int
    confirmed_losses: list[CategoryLoss] = field(default_factory=list)

    @property
    def moved(self) -> np.ndarray:
        """Positions of the images that moved."""
        return np.flatnonzero((self.previous_clusters >= 0) & (self.previous_clusters != self.now.clusters))

    @cached_property
    def _counts(self) -> np.ndarray:
        """Images by previous cluster and present cluster."""
        shape = len(self.previous_names), len(self.now.names)
        return contingency_table(self.previous_clusters, self.now.clusters, *shape)

    @cached_property
    def _persisting(self) -> list[int]:
        """Cluster numbers that stand for the same category in both runs."""
        pairs = enumerate(zip(self.previous_names, self.now.names, strict=False))
        return [c for c, (old, new) in pairs if old == new or self._counts[c, c]]

    def summary(self) -> ChangeSummary:
        in_both = int((self.previous_clusters >= 0).sum())
        old, new, persisting = self.previous_names, self.now.names, set(self._persisting)
        flows = Counter((old[self.previous_clusters[i]], new[self.now.clusters[i]]) for i in self.moved)
        return ChangeSummary(
            previous_run=self.previous_run,
            images=in_both,
            moved=len(self.moved),
            added=len(self.now) - in_both,
            missing=self.n_previous_images - in_both,
            renamed=[
                RenamedCategory(cluster=c, old_name=old[c], new_name=new[c])
                for c in self._persisting
                if old[c] != new[c]
            ],
            removed_categories=[self._removed(c) for c in range(len(old)) if c not in persisting],
            added_categories=[AddedCategory(cluster=c, name=name) for c, name in enumerate(new) if c not in persisting],
            flows=[Flow(source=a, target=b, images=n) for (a, b), n in flows.most_common()],
            confirmed_losses=self.confirmed_losses,
        )

    def _removed(self, cluster: int) -> RemovedCategory:
        moved_to = self._counts[cluster]
        into = self.now.names[int(moved_to.argmax())] if 2 * moved_to.max(initial=0) > moved_to.sum() else None
        return RemovedCategory(
            cluster=cluster, name=self.previous_names[cluster], images=int(moved_to.sum()), into=into
        )

    def write_table(self, file: Path) -> None:
        """The images that moved, as CSV."""
        rows = [
            (
                self.now.paths[i],
                self.previous_clusters[i],
                self.previous_names[self.previous_clusters[i]],
                self.now.clusters[i],
                self.now.names[self.now.clusters[i]],
                f"{self.now.confidence[i]:.4f}",
                "yes" if self.now.labelled[i] else "no",
            )
            for i in self.moved
        ]
        files.write_csv(file, COLUMNS, rows)
