"""What prompts cost at inference: time, throughput, FLOPs and parameters of the backbone, with and without prompts.

None of these depend on the weights, so the weights are random and nothing is downloaded.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from promptcal._version import __version__
from promptcal.config import Config
from promptcal.errors import RunError
from promptcal.experiments.jobs import State, job_name
from promptcal.experiments.run_records import ScoreValues, changed_settings
from promptcal.experiments.table_request import TableRequest
from promptcal.methods import load_config
from promptcal.models import PromptedViT
from promptcal.runtime.device import choose_device
from promptcal.runtime.json_model import JSONModel

_BATCH = {"cuda": 128, "cpu": 8}
_MIN_BATCHES = 5
_MIN_SECONDS = 2.0


class EfficiencyRecord(JSONModel):
    """`results.json` of a measurement."""

    promptcal: str
    device: str
    threads: int
    efficiency: dict[str, float]
    seconds: float

    @property
    def machine(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return f"{self.device} ({threads})" if self.device == "cpu" else self.device

    def values_of(self, score: str) -> ScoreValues:
        return ScoreValues(self.efficiency, {})


@dataclass(frozen=True)
class EfficiencyJob:
    """One measurement; repetitions have different seeds."""

    backbone: str
    prompts: int
    seed: int
    overrides: tuple[str, ...] = ()
    device: str | None = None

    @cached_property
    def name(self) -> str:
        changes = changed_settings(self._config(self.overrides), self._config(()))
        parts = ["efficiency", self.backbone, f"prompts{self.prompts}", choose_device(self.device or "auto").type]
        return job_name(parts, changes, self.seed)

    def state(self, request: TableRequest) -> State:
        if not self._file(request).parent.exists():
            return State("missing")
        try:
            self.record(request)
        except RunError as error:
            return State.damaged(error)
        return State("finished")

    def run(self, request: TableRequest) -> None:
        started = time.monotonic()
        device = choose_device(self.device or "auto")
        model = self._config(self.overrides).model
        torch.manual_seed(self.seed)
        vit = PromptedViT(model.backbone, model.prompts, 0, image_size=model.image_size, pretrained=False)
        values = measure(vit.to(device), device)
        self._file(request).parent.mkdir(parents=True, exist_ok=True)
        EfficiencyRecord(
            promptcal=__version__,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            threads=torch.get_num_threads(),
            efficiency=values,
            seconds=round(time.monotonic() - started, 1),
        ).write(self._file(request))

    def record(self, request: TableRequest) -> EfficiencyRecord:
        return EfficiencyRecord.read(self._file(request))

    def unmet_conditions(self, request: TableRequest) -> list[str]:
        return []  # FLOPs depend on the backbone alone

    def _file(self, request: TableRequest) -> Path:
        return request.folder / self.name / "results.json"

    def _config(self, overrides: tuple[str, ...]) -> Config:
        values = {"n_classes": 1, "model": {"backbone": self.backbone, "prompts": self.prompts}}
        return load_config(values=values, overrides=overrides)


@torch.inference_mode()
def measure(vit: PromptedViT, device: torch.device) -> dict[str, float]:
    """Values for one image; time is measured in batches, as at inference.

    ``gflops`` count all tokens, as papers do; ``gflops_here`` leave out tokens of the last block that are not used.
    """
    vit.eval()
    size = vit.preprocessing.image_size
    images = torch.randn(_BATCH.get(device.type, 8), 3, size, size, device=device)
    seconds = _seconds_per_batch(vit, images) / len(images)
    return {
        "seconds_per_image": seconds,
        "images_per_second": 1 / seconds,
        "gflops": count_flops(vit.forward_tokens, images[:1]) / 1e9,
        "gflops_here": count_flops(vit, images[:1]) / 1e9,
        "million_parameters": sum(p.numel() for p in vit.parameters()) / 1e6,
    }


def count_flops(forward: Callable[[Tensor], Any], images: Tensor) -> int:
    """Floating-point operations of a forward pass, two for each multiplication and addition.

    Attention is computed without fused kernels, which the counter does not know on every device.
    """
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        forward(images)
    return counter.get_total_flops()


def _seconds_per_batch(vit: nn.Module, images: Tensor) -> float:
    """The median, after one batch for warm-up."""
    synchronize = torch.cuda.synchronize if images.is_cuda else lambda: None
    times: list[float] = []
    while len(times) <= _MIN_BATCHES or sum(times[1:]) < _MIN_SECONDS:
        synchronize()
        started = time.perf_counter()
        vit(images)
        synchronize()
        times.append(time.perf_counter() - started)
    return median(times[1:])
