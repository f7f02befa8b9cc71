"""What prompts cost at inference: time, throughput, FLOPs and parameters of the backbone, with and without them.

Neither depends on the weights, so they are random and nothing is fetched.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from promptcal._version import __version__
from promptcal.config import Config
from promptcal.errors import RunError
from promptcal.experiments.definition import Stage
from promptcal.experiments.jobs import Outcome, RunOptions, State, flat, job_name
from promptcal.methods import load_config
from promptcal.models import PromptedViT
from promptcal.runtime import files
from promptcal.runtime.device import choose_device
from promptcal.runtime.progress import progress_bar

_BATCH = {"cuda": 128, "cpu": 8}
_MIN_BATCHES = 5
_MIN_SECONDS = 2.0


@dataclass(frozen=True)
class EfficiencyJob:
    """One measurement; the seed tells repetitions apart."""

    backbone: str
    prompts: int
    seed: int
    overrides: tuple[str, ...] = ()
    device: str | None = None

    @cached_property
    def name(self) -> str:
        plain, own = (flat(self._config(o).model_dump()) for o in ((), self.overrides))
        changes = {k: v for k, v in own.items() if v != plain[k]}
        parts = ["efficiency", self.backbone, f"prompts{self.prompts}", choose_device(self.device or "auto").type]
        return job_name(parts, changes, self.seed)

    def state(self, where: RunOptions) -> State:
        if not (where.output / self.name).exists():
            return State("missing")
        try:
            self.outcome(where, "final")
        except RunError as error:
            return State("damaged", str(error))
        return State("finished")

    def run(self, where: RunOptions) -> None:
        started = time.monotonic()
        device = choose_device(self.device or "auto")
        model = self._config(self.overrides).model
        torch.manual_seed(self.seed)
        vit = PromptedViT(model.backbone, model.prompts, 0, image_size=model.image_size, pretrained=False)
        figures = measure(vit.to(device), device, progress=where.progress)
        folder = where.output / self.name
        folder.mkdir(parents=True, exist_ok=True)
        results = {
            "promptcal": __version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "efficiency": figures,
            "seconds": round(time.monotonic() - started, 1),
        }
        files.write_json(folder / "results.json", results)

    def outcome(self, where: RunOptions, stage: Stage) -> Outcome:
        results = self.results(where)
        return Outcome(results["efficiency"], {}, results["seconds"])

    def results(self, where: RunOptions) -> dict[str, Any]:
        file = where.output / self.name / "results.json"
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            float(results["efficiency"]["gflops"]), float(results["seconds"]), str(results["device"])
            return results
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} cannot be read ({error}); delete its folder and run the table again") from error

    def _config(self, overrides: tuple[str, ...]) -> Config:
        values = {"n_classes": 1, "model": {"backbone": self.backbone, "prompts": self.prompts}}
        return load_config(values=values, overrides=overrides)


@torch.inference_mode()
def measure(vit: PromptedViT, device: torch.device, *, progress: bool = False) -> dict[str, float]:
    """Figures of one image, timed in batches as inference runs them.

    ``gflops`` are of all tokens, as papers count; ``gflops_here`` without those of the last block that nobody reads.
    """
    vit.eval()
    size = vit.preprocessing.image_size
    images = torch.randn(_BATCH.get(device.type, 8), 3, size, size, device=device)
    seconds = _seconds_a_batch(vit, images, progress) / len(images)
    return {
        "seconds_per_image": seconds,
        "images_per_second": 1 / seconds,
        "gflops": count_flops(vit.forward_tokens, images[:1]) / 1e9,
        "gflops_here": count_flops(vit, images[:1]) / 1e9,
        "million_parameters": sum(p.numel() for p in vit.parameters()) / 1e6,
    }


def count_flops(forward: Callable[[Tensor], Any], images: Tensor) -> int:
    """Floating-point operations of a forward pass, two for each multiplication and addition.

    Attention is computed step by step for the count, as not every device's fused kernel is known to the counter.
    """
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        forward(images)
    return counter.get_total_flops()


def _seconds_a_batch(vit: nn.Module, images: Tensor, progress: bool) -> float:
    """The median, after one batch to warm up."""
    times: list[float] = []
    with progress_bar(Console(stderr=True, quiet=not progress)) as bar:
        task = bar.add_task("timing", total=_MIN_BATCHES, note="")
        while len(times) <= _MIN_BATCHES or sum(times[1:]) < _MIN_SECONDS:
            _wait(images)
            started = time.perf_counter()
            vit(images)
            _wait(images)
            times.append(time.perf_counter() - started)
            bar.update(task, completed=min(len(times) - 1, _MIN_BATCHES))
    return median(times[1:])


def _wait(images: Tensor) -> None:
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
