"""A finished run as the model of shards."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcal.run.inference import Run
from promptcal.runtime.files import file_digest
from promptcal.shards.assigner import Assigner
from promptcal.shards.embedder import Embedder
from promptcal.shards.shard_task import LoadedModel


@dataclass(frozen=True)
class RunModel:
    """``embeds``: the input are images. ``assigns``: the output has categories. ``threshold``: below this cosine with
    the nearest centroid an image is in none of them; None accepts all. ``keep_labels``: see `Assigner`.
    """

    path: Path
    embeds: bool
    assigns: bool
    threshold: float | None = None
    keep_labels: bool = False

    def identity(self) -> dict[str, Any]:
        run = Run(self.path, "cpu", warn_if_unfinished=False)
        checksums = run.info.sha256
        found: dict[str, Any] = {"output": "assignments" if self.assigns else "embeddings"}
        if self.embeds:
            found |= {"model": checksums.get("model.safetensors", ""), "resize": run.info.resize}
        if self.assigns:
            found |= {
                "categories": hashlib.sha256("\n".join(run.names).encode()).hexdigest(),
                "centroids": file_digest(run.directory.centroids_file),
                "temperature": run.calibration.temperature,
                "threshold": self.threshold,
                "keep_labels": self.keep_labels,
            }
        return found

    def load(self, device: str | None) -> LoadedModel:
        run = Run(self.path, device, warn_if_unfinished=False)
        if self.embeds:
            run.check_embeds_images()
        threshold = -math.inf if self.threshold is None else self.threshold
        return LoadedModel(
            run.network.embedding_width,
            Embedder(run.network.vit, run.info.resize) if self.embeds else None,
            Assigner(run, threshold, keep_labels=self.keep_labels) if self.assigns else None,
        )
