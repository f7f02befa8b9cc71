"""Columns that a run adds to embeddings: the category of each image, how certain it is, and what is near."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.partition import RankedClusters, join_ranked, rank_scores
from promptcal.run.inference import Run

_ROWS = 512  # whose scores for all categories are in memory at a time: they stay in the processor's cache


class Assigner:
    """Assigns embeddings to the categories of a run.

    An image whose cosine with the nearest centroid is below ``threshold`` is in none of them. With ``keep_labels``, an
    image that the run knows as labelled is in the category of its label.
    """

    def __init__(self, run: Run, threshold: float, *, keep_labels: bool = False) -> None:
        self.run = run
        self.threshold = threshold
        self.device = run.device
        self._unit = torch.nn.functional.normalize(run.centroids, dim=1)
        known = [i for i, is_known in enumerate(run.known) if is_known]
        # usually the first ones; then their columns need not be copied
        self._known = slice(len(known)) if known == list(range(len(known))) else known
        self._has_known = bool(known)
        assignments = run.assignments()
        self._stability = assignments.category_stability()
        labelled = assignments.labelled if keep_labels else np.zeros(len(assignments), dtype=bool)
        self._labelled = dict(
            zip(np.array(assignments.paths, dtype=object)[labelled], assignments.clusters[labelled], strict=True)
        )

    def columns(self, ids: list[str], features: Tensor) -> dict[str, Any]:
        """Arrow arrays by the name of the column."""
        import pyarrow as pa

        ranked, similarity, distance = self._rank(features, self._given(ids))
        clusters = ranked.clusters.astype(np.int32)
        second = ranked.second.astype(np.int32)
        names = pa.array(self.run.names)
        kinds = np.array([0 if known else 1 for known in self.run.known], dtype=np.int8)[clusters]
        accepted = similarity >= self.threshold
        stability = None if self._stability is None else self._stability[clusters].astype(np.float32)
        return {
            "cluster": pa.array(clusters),
            "name": pa.DictionaryArray.from_arrays(pa.array(clusters), names),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array(["known", "new"])),
            "confidence": pa.array(ranked.confidence.astype(np.float32)),
            "stability": pa.nulls(len(ids), pa.float32())
            if stability is None
            else pa.array(stability, mask=np.isnan(stability)),
            "second": pa.DictionaryArray.from_arrays(pa.array(second, mask=second < 0), names),
            "second_confidence": pa.array(ranked.second_confidence.astype(np.float32), mask=second < 0),
            "known_distance": pa.array(distance, mask=np.isnan(distance)),
            "similarity": pa.array(similarity),
            "decision": pa.DictionaryArray.from_arrays(
                pa.array(np.where(accepted, 0, 1).astype(np.int8)), pa.array(["accepted", "none"])
            ),
        }

    def _given(self, ids: list[str]) -> Tensor | None:
        """The categories of labelled images, -1 for all others; None without labels."""
        if not self._labelled:
            return None
        return torch.tensor([self._labelled.get(name, -1) for name in ids], device=self.device)

    @torch.no_grad()
    def _rank(self, features: Tensor, given: Tensor | None) -> tuple[RankedClusters, np.ndarray, np.ndarray]:
        """Ranked categories, the cosine with the nearest centroid, and 1 - cosine with the nearest known one."""
        ranked, nearest, assignment = [], [], self.run.assignment
        labels = None if given is None else given.split(_ROWS)
        for i, block in enumerate(features.to(self.device).split(_ROWS)):
            cosines = block @ self._unit.T
            largest = cosines.amax(dim=1)
            known = cosines[:, self._known].amax(dim=1) if self._has_known else torch.full_like(largest, torch.nan)
            nearest.append(torch.stack([largest, 1 - known]).cpu().numpy())
            is_cosine = assignment.score_kind == "cosines"
            scores = cosines if is_cosine else assignment.scores(block, self.run)
            clusters = assignment.choose(block, scores, self.run.centroids)
            if labels is not None:
                clusters = torch.where(labels[i] >= 0, labels[i], clusters)
            ranked.append(rank_scores(scores, clusters, self.run.calibration.temperature))
        both = np.concatenate(nearest, axis=1).astype(np.float32)
        return join_ranked(ranked), both[0], both[1].clip(min=0)
