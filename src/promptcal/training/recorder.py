"""The records of a training: a progress bar, `metrics.jsonl`, and TensorBoard."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from promptcal.runtime.device import widest_float
from promptcal.runtime.files import append_text, finite, truncate
from promptcal.training.time_estimate import describe_duration

_BAR_LABELS = {"loss": "loss", "cls/positives": "positives"}
_EPOCH_LABELS = {
    "loss": "loss",
    "gradient_norm": "gradient",
    "cls/affinity": "affinity loss",
    "cls/positives": "positives per query",
    "cls/without_positives": "queries without",
    "cls/precision": "precision",
    "cls/recall": "recall",
    "validation/known": "validation known",
    "validation/silhouette": "silhouette of new",
}


class AsyncScalars:
    """Numbers that are copied from the device without blocking; `values` waits for them."""

    def __init__(self, numbers: dict[str, Tensor]) -> None:
        self._names = list(numbers)
        wide = [value.to(widest_float(value.device)) for value in numbers.values()]
        stacked = torch.stack(wide) if wide else torch.empty(0)
        self._arrival = None
        if stacked.device.type == "cuda":
            self._host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
            self._host.copy_(stacked, non_blocking=True)
            self._arrival = torch.cuda.Event()
            self._arrival.record(torch.cuda.current_stream(stacked.device))
        else:
            self._host = stacked.cpu()

    def is_ready(self) -> bool:
        return self._arrival is None or self._arrival.query()

    def values(self) -> dict[str, float]:
        if self._arrival is not None:
            self._arrival.synchronize()
        return dict(zip(self._names, self._host.tolist(), strict=True))


class Recorder:
    """Records epochs; shows steps, with losses and statistics if ``verbose``.

    Nothing is written unless ``writes`` (in a group, only the first process writes).
    """

    _REFRESH_SECONDS = 0.5

    def __init__(
        self,
        folder: Path,
        console: Console,
        *,
        tensorboard: bool,
        writes: bool = True,
        titles: Mapping[str, str] | None = None,
        verbose: bool = True,
    ) -> None:
        self.path = folder / "metrics.jsonl"
        self.console = console
        self.writes = writes
        self.verbose = verbose
        self._titles = dict(titles or {})
        self._tensorboard_folder = folder / "tensorboard" if tensorboard and writes else None
        self._writer: Any = None
        self._shown_at = 0.0

    def position(self) -> int:
        """The size of the records in bytes, which a checkpoint stores."""
        return self.path.stat().st_size if self.writes and self.path.exists() else 0

    def rewind(self, position: int) -> None:
        """Remove what was recorded after a checkpoint, so that no epoch is recorded twice."""
        if self.writes and self.path.exists():
            truncate(self.path, position)

    def open(self, stage: str, global_step: int) -> None:
        """Start or resume a stage; TensorBoard drops what an earlier process wrote after this step."""
        if self._tensorboard_folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # TensorBoard opens its file through a link, so nobody may know the name before.
            self._writer = SummaryWriter(
                str(self._tensorboard_folder / stage), purge_step=global_step, filename_suffix=f".{token_hex(8)}"
            )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def due(self) -> bool:
        """Whether it is time to refresh the progress bar."""
        if time.monotonic() - self._shown_at < self._REFRESH_SECONDS:
            return False
        self._shown_at = time.monotonic()
        return True

    def title(self, stage: str) -> str:
        """The stage in words."""
        return self._titles.get(stage, stage)

    def note(self, values: dict[str, float], seconds_left: float) -> str:
        """The text beside the progress bar: the time that the fit still takes, then internal statistics."""
        left = f"{describe_duration(seconds_left)} in total"
        return f"{left}, {_describe(values, _BAR_LABELS)}" if self.verbose else left

    def epoch(self, record: dict[str, Any], global_step: int) -> None:
        """Write one epoch's means; numbers that are not finite become null."""
        if not self.writes:
            return
        clean = finite(record)
        append_text(self.path, json.dumps(clean) + "\n")  # before the checkpoint that stores their size
        if self._writer is not None:
            for key, value in clean.items():
                if isinstance(value, float):
                    self._writer.add_scalar(key, value, global_step)
            self._writer.flush()
        line = f"{record['stage']} {record['epoch']}/{record['epochs']}  {_describe(record, _EPOCH_LABELS)}"
        if not self.verbose:
            line = f"{self.title(record['stage'])}: epoch {record['epoch']} of {record['epochs']}"
            if "validation/known" in record:
                line += f", {100 * record['validation/known']:.0f} % of the held-out labels are right"
        self.console.print(line, highlight=False, soft_wrap=True)


def _describe(values: dict[str, Any], labels: dict[str, str]) -> str:
    return ", ".join(f"{label} {values[key]:.3g}" for key, label in labels.items() if key in values)
