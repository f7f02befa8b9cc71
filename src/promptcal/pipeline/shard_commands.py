"""`promptcal embed`, and `promptcal predict` of a source in shards."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from promptcal.config import Config
from promptcal.errors import ConfigError, DataError, shorten
from promptcal.pipeline.class_estimate import pretrained_vit
from promptcal.pipeline.inputs import backbone_config
from promptcal.pipeline.request import EmbedRequest, PredictShardsRequest, ShardRequest
from promptcal.run.inference import Run
from promptcal.runtime import files
from promptcal.runtime.arguments import as_list, check_argument, check_path
from promptcal.runtime.device import explain_memory_errors
from promptcal.shards import locations
from promptcal.shards.embedder import Embedder
from promptcal.shards.engines import EngineSettings
from promptcal.shards.engines.worker import environment_number
from promptcal.shards.process import ShardJob, ShardSummary, process_shards
from promptcal.shards.run_model import RunModel
from promptcal.shards.shard_folder import ShardFolder
from promptcal.shards.shard_task import LoadedModel, ShardModel

MOST_WORKERS = 1024
LARGEST_SHARD = 100_000_000  # images


@dataclass(frozen=True)
class BackboneModel:
    """A pretrained backbone; ``weights`` is the SHA-256 of its parameters."""

    config: Config
    weights: str

    @classmethod
    def of(cls, config: Config) -> "BackboneModel":
        vit, _ = pretrained_vit(config.model_copy(update={"device": "cpu"}))
        return cls(config, files.tensors_digest({name: t.contiguous() for name, t in vit.state_dict().items()}))

    def identity(self) -> dict[str, Any]:
        model = self.config.model
        return {
            "output": "embeddings",
            "backbone": model.backbone,
            "model": self.weights,
            "image_size": model.image_size,
            "resize": self.config.data.resize,
        }

    def load(self, device: str | None) -> LoadedModel:
        vit, resize = pretrained_vit(self.config.model_copy(update={"device": device or self.config.device}))
        embedder = Embedder(vit, resize)
        return LoadedModel(embedder.width, embedder)


@explain_memory_errors()
def run_embed(request: EmbedRequest) -> ShardSummary:
    """Embed every image of the source."""
    if request.run is not None:
        if request.backbone is not None or request.weights is not None:
            raise ConfigError("a run has its own backbone; give either the run or a backbone and its weights")
        run = Run(_run_path(request.run), "cpu")
        run.check_embeds_images()
        return process_shards(_job(request, RunModel(run.path.absolute(), True, False)), _console(request))
    return process_shards(_job(request, BackboneModel.of(backbone_config(request))), _console(request))


@explain_memory_errors()
def run_predict_shards(request: PredictShardsRequest) -> ShardSummary:
    """Assign every image, or every embedding, of the source to the categories of the run."""
    run = Run(_run_path(request.run), "cpu")
    is_own = Path(request.output).absolute() == run.directory.shards_folder.absolute()  # see `own_assignments`
    threshold = run.threshold(request.none_below, request.accept_all or is_own)
    embeddings = not run.method.takes_images or any(map(ShardFolder.is_at, _locations(request.source)))
    if embeddings:
        _check_embeddings(request, run)
    model = RunModel(
        run.path.absolute(),
        embeds=not embeddings,
        assigns=True,
        threshold=None if math.isinf(threshold) else threshold,
        keep_labels=is_own,
    )
    return process_shards(_job(request, model, embeddings=embeddings), _console(request))


def _check_embeddings(request: PredictShardsRequest, run: Run) -> None:
    """Embeddings of `promptcal embed` must be those of the run's own network."""
    expected = run.info.sha256.get("model.safetensors")
    for location in filter(ShardFolder.is_at, _locations(request.source)):
        work = ShardFolder(location).manifest().work
        if run.method.takes_images and work.get("model") != expected:
            raise DataError(
                f"{location} was embedded by another model than that of {run.path}; embed the images with --run "
                f"{run.path}, or give the images themselves"
            )


def _job(request: ShardRequest, model: ShardModel, *, embeddings: bool = False) -> ShardJob:
    for name, most in (("workers", MOST_WORKERS), ("shard_size", LARGEST_SHARD)):
        value = getattr(request, name)
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 to {most:,}, not {shorten(value)}")
    if request.address is not None and request.engine != "ray":
        raise ConfigError("--address is that of a Ray cluster; add --engine ray")
    if request.engine != "array" and environment_number("WORLD_SIZE", 1) > 1:
        raise ConfigError(f"the engine {request.engine} starts its own processes; add --engine array under torchrun")
    return ShardJob(
        source=_locations(request.source),
        model=model,
        output=Path(request.output),
        engine=request.engine,
        settings=EngineSettings(request.workers, request.address),
        shard_size=request.shard_size,
        embeddings=embeddings,
        device=request.device,
    )


def _locations(source: Any) -> tuple[str, ...]:
    given: Sequence[Any] = [source] if isinstance(source, str | os.PathLike) else as_list("source", source)
    if not given:
        raise DataError("no source was given; pass a folder, a tar or parquet file, or a list of images")
    return tuple(locations.absolute(_text_of(location)) for location in given)


def _text_of(location: Any) -> str:
    """A URL or a path as text."""
    check_argument("source", location, str | os.PathLike)
    return str(location) if isinstance(location, str) else str(check_path("source", location))


def _run_path(run: Any) -> Path:
    return run.path if isinstance(run, Run) else check_path("run", run)


def _console(request: ShardRequest) -> Console:
    is_first = os.environ.get("RANK", "0") == "0"
    return Console(stderr=True, quiet=not (request.progress and is_first))
