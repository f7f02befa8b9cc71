"""The inputs of a fit or of `cluster` that are a sample of a source of any size."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from promptcal.data import ImageSet
from promptcal.data.feature_set import FeatureSet
from promptcal.data.image_files import class_folder_labels
from promptcal.data.images import SourceLabels
from promptcal.data.labels import UNCOUNTED, label_pairs, normal_name
from promptcal.errors import ConfigError, shorten
from promptcal.pipeline.request import ClusterRequest, FitRequest
from promptcal.run.assignments import Assignments
from promptcal.runtime.arguments import check_path
from promptcal.runtime.progress import show_progress
from promptcal.shards import locations
from promptcal.shards.find_shards import expand, is_sharded
from promptcal.shards.sampled import row_counts, sample_embeddings, sample_images

DEFAULT_SAMPLE = 200_000
MOST_SAMPLED = 1_000_000_000  # what fits is checked against the memory
_Request = TypeVar("_Request", FitRequest, ClusterRequest)


def is_folder_of_shards(features: Any) -> bool:
    """Whether features are many files instead of one."""
    if not isinstance(features, str | os.PathLike):
        return False
    location = features if isinstance(features, str) else str(check_path("features", features))
    return locations.is_url(location) or locations.is_pattern(location) or os.path.isdir(location)


def sampled_features(request: ClusterRequest, before: Assignments | None, seed: int, console: Console) -> FeatureSet:
    """All labelled rows of a folder of embeddings, and a uniform sample of the others; ``before`` is a previous run."""
    if request.ids is not None or request.images is not None:
        raise ConfigError("--ids and --images are for one file of features; shards have their own ids and paths")
    size = sample_size(DEFAULT_SAMPLE if request.sample is None else request.sample)
    location = os.fspath(request.features)
    shards, _ = expand([location], embeddings=True)
    sizes = row_counts(shards)
    wanted = _wanted_names(request, before, console, n_images=sum(sizes))
    with show_progress(console, "reading a sample", len(shards)) as show:
        return sample_embeddings(shards, sizes, wanted, size, seed, location, show)


def with_default_sample(request: FitRequest) -> FitRequest:
    """A source that can only be read in shards is always sampled."""
    images = request.images[0] if isinstance(request.images, list | tuple) and request.images else request.images
    if request.sample is not None or not isinstance(images, str | os.PathLike) or not is_sharded(images):
        return request
    return replace(request, sample=DEFAULT_SAMPLE)


def sampled_images(request: FitRequest, before: Assignments | None, seed: int, console: Console) -> ImageSet:
    """All labelled images of a source, and a uniform sample of the others; ``before`` is a previous run."""
    size = sample_size(request.sample)
    given = request.images
    source = [os.fspath(s) for s in ([given] if isinstance(given, str | os.PathLike) else given)]
    root = Path(source[0]) if len(source) == 1 and os.path.isdir(source[0]) else None
    has_shards = bool(expand(source)[0])
    root = None if has_shards else root
    by_folder = request.labels is None and root is not None and request.start_from is None
    is_labelled: Callable[[str], bool]
    if by_folder and root is not None:
        folder = root
        is_labelled = lambda name: bool(class_folder_labels(folder, [name]))  # noqa: E731
    else:
        wanted = _wanted_names(request, before, console, root)
        is_labelled = lambda name: normal_name(name) in wanted  # noqa: E731
    with show_progress(console, "sampling images", None) as show:
        images = sample_images(source, is_labelled, size, seed, root, show)
    if not by_folder or root is None:
        return images
    labels = class_folder_labels(root, images.names)
    origin = f"the class folders beside the unlabelled one in {root}"
    return images if labels is None else replace(images, source_labels=SourceLabels(labels, origin))


def with_truth_of(request: _Request, images: ImageSet | FeatureSet, console: Console) -> _Request:
    """The truth of the images of a sample only: a file has that of all images."""
    if request.truth is None:
        return request
    sampled = set(map(normal_name, images.names))
    root = images.root if isinstance(images, ImageSet) else None
    pairs = label_pairs(request.truth, root, images.n_source or len(images), console)
    return replace(request, truth={name: label for name, label in pairs if name in sampled})


def _wanted_names(
    request: FitRequest | ClusterRequest,
    before: Assignments | None,
    console: Console,
    root: Path | None = None,
    n_images: int = UNCOUNTED,
) -> frozenset[str]:
    """The names in the given labels and in those of a previous run.

    A row without a label names no image, unless the previous run has it: then it is marked as wrong.
    """
    known = frozenset(() if before is None else map(normal_name, before.paths))
    names: set[str] = set()
    if request.labels is not None:
        pairs = label_pairs(request.labels, root, n_images, console)
        names.update(name for name, label in pairs if label is not None or name in known)
    if before is not None:
        names.update(normal_name(before.paths[i]) for i in np.flatnonzero(before.labelled))
    return frozenset(names)


def sample_size(n: int | None) -> int:
    """The checked value of ``--sample``."""
    if n is None or not 1 <= n <= MOST_SAMPLED:
        raise ConfigError(f"--sample must be 1 to {MOST_SAMPLED:,}, not {shorten(n)}")
    return n
