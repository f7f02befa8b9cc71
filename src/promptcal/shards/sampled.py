"""A sample of a source of any size: all labelled images or rows, and a uniform sample of the others.

The source is read as a stream, so that only the sample is in memory. It depends on the seed and on the order of the
source, which is sorted.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcal.data import ImageSet
from promptcal.data.feature_files import check_distinct, check_id_texts, rows_of_array
from promptcal.data.feature_set import FeatureSet
from promptcal.data.labels import normal_name
from promptcal.data.sources import ImageSource
from promptcal.errors import DataError
from promptcal.runtime.free_memory import check_sizes
from promptcal.runtime.reading import read_image
from promptcal.runtime.seeds import derive_seed
from promptcal.shards import locations
from promptcal.shards.embedding_shards import embedding_columns, unit_rows
from promptcal.shards.find_shards import NameList, expand
from promptcal.shards.manifest import InputShard
from promptcal.shards.parquet_images import id_texts, opened_parquet, read_row
from promptcal.shards.shard_images import image_places, paths_in
from promptcal.shards.shard_sources import Place

OnProgress = Callable[[int], None]
_NAMES_AT_ONCE = 2**12
_IMAGE_BYTES = 400  # of memory, for the name and the place of an image
_CHECKED_FROM = 2**20  # images of a sample, from which on memory is compared with what is free


@dataclass(frozen=True)
class PlaceSource(ImageSource):
    """Single images of many shards."""

    places: Sequence[Place]

    def content(self, index: int) -> bytes:
        place = self.places[index]
        if place.row is not None:
            return read_row(place.location, place.row)
        if place.offset is None:
            return locations.read_location(place.location)
        with locations.opened(place.location) as file:
            file.seek(place.offset)
            return read_image(file, place.size)

    def path(self, index: int) -> Path | None:
        place = self.places[index]
        is_file = place.row is None and place.offset is None and not locations.is_url(place.location)
        return Path(place.location) if is_file else None


def _list_places(names: NameList) -> Iterator[tuple[list[str], list[Place]]]:
    while block := list(islice(names.names, _NAMES_AT_ONCE)):
        check_id_texts(block, names.name)
        yield block, [Place(path) for path in paths_in(names.root, block)]


class StreamSample:
    """Samples a stream of names: those that are wanted, and ``n`` of the others, each with the same probability.

    Each name gets a random number, and the ``n`` smallest ones are kept.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self.position = 0
        self._generator = np.random.default_rng(derive_seed(seed, "sample"))
        self._limit = 1.0
        self._checked = _CHECKED_FROM
        self._kept: list[tuple[float, int, str, Place]] = []
        self._wanted: list[tuple[float, int, str, Place]] = []

    def offer(self, names: Sequence[str], places: Sequence[Place], is_wanted: Callable[[str], bool]) -> None:
        keys = self._generator.random(len(names))
        for i, name in enumerate(names):
            if is_wanted(name):
                self._wanted.append((0.0, self.position + i, name, places[i]))
            elif keys[i] < self._limit:
                self._kept.append((float(keys[i]), self.position + i, name, places[i]))
        self.position += len(names)
        if len(self._kept) > 2 * self.n + 1000:
            self._prune()
        if len(self._kept) + len(self._wanted) > self._checked:
            check_sizes({f"--sample {self.n}": float(self._checked * _IMAGE_BYTES)}, torch.device("cpu"))
            self._checked *= 2

    def _prune(self) -> None:
        self._kept = sorted(self._kept)[: self.n]
        if len(self._kept) == self.n:
            self._limit = self._kept[-1][0] if self._kept else 0.0

    def chosen(self) -> tuple[list[str], list[Place]]:
        """Names and places in the order of the stream."""
        self._prune()
        rows = sorted([*self._kept, *self._wanted], key=lambda row: row[1])
        return [row[2] for row in rows], [row[3] for row in rows]


def sample_images(
    source: Sequence[str],
    is_labelled: Callable[[str], bool],
    n: int,
    seed: int,
    root: Path | None,
    on_progress: OnProgress = lambda done: None,
) -> ImageSet:
    """All labelled images of the source and ``n`` others; ``on_progress`` gets the number of names read so far."""
    sample = StreamSample(n, seed)
    shards, lists = expand(source)
    for names, places in chain(*map(image_places, shards), *map(_list_places, lists)):
        sample.offer(names, places, is_labelled)
        on_progress(sample.position)
    if not sample.position:
        raise DataError(f"{', '.join(source)} contains no images; check the path")
    names, places = sample.chosen()
    return ImageSet(check_distinct(names, "the source"), PlaceSource(places), root, n_source=sample.position)


def sample_embeddings(
    shards: Sequence[InputShard],
    sizes: Sequence[int],
    labelled: Collection[str],
    n: int,
    seed: int,
    origin: str,
    on_progress: OnProgress = lambda done: None,
) -> FeatureSet:
    """All labelled rows of the shards and about ``n`` others, each with the same probability.

    ``sizes`` are those of `row_counts`. ``labelled`` has normal names.
    """
    import pyarrow as pa

    total = sum(sizes)
    wanted = pa.array(sorted(labelled), pa.string())
    drawn = min(total, round(n * total / max(1, total - len(labelled))))  # labelled rows are drawn, too
    _check_memory(shards, n, min(total, drawn + len(labelled)), total)
    chosen = np.arange(0, dtype=np.int64)
    if drawn < total:
        generator = np.random.default_rng(derive_seed(seed, "sample"))
        chosen = np.sort(generator.choice(total, drawn, replace=False, shuffle=False))
    names: list[str] = []
    parts: list[np.ndarray] = []
    first = 0
    for number, (shard, size) in enumerate(zip(shards, sizes, strict=True), 1):
        of_shard = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, first + size)] - first
        picked = np.arange(size) if drawn == total else of_shard
        _read_chosen(shard, picked, wanted, names, parts)
        first += size
        on_progress(number)
    if not parts:
        raise DataError(f"{origin} has no rows; give shards with embeddings")
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError(f"the shards of {origin} have embeddings of different lengths; give those of one model")
    table = rows_of_array(np.concatenate(parts), origin)
    return FeatureSet(check_distinct(names, origin), table, origin, None, has_ids=True, n_source=total)


def _check_memory(shards: Sequence[InputShard], n: int, rows: int, total: int) -> None:
    """Reject a sample whose rows, which are put together from parts, do not fit into the free memory."""
    if not shards:
        return
    with opened_parquet(shards[0].location) as file:
        _, list_name, _ = embedding_columns(file.schema_arrow, shards[0].location)
        width = file.schema_arrow.field(list_name).type.list_size
    check_sizes({f"--sample {n}": 2.0 * 4 * rows * width + 8.0 * total}, torch.device("cpu"))


def row_counts(shards: Sequence[InputShard]) -> list[int]:
    """The number of rows of each parquet file."""
    sizes = []
    for shard in shards:
        with opened_parquet(shard.location) as file:
            sizes.append(file.metadata.num_rows)
    return sizes


def _read_chosen(shard: InputShard, picked: np.ndarray, wanted: Any, names: list[str], parts: list[np.ndarray]) -> None:
    """Add the picked rows of a shard and those with the ``wanted`` ids; only groups with such rows are read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = 0
    with opened_parquet(shard.location) as file:
        id_name, list_name, _ = embedding_columns(file.schema_arrow, shard.location)
        width = file.schema_arrow.field(list_name).type.list_size
        for group in range(file.num_row_groups):
            column = file.read_row_group(group, columns=[id_name]).column(0)
            ids = id_texts(column, id_name, shard.location, first)
            normal = pa.array(map(normal_name, ids), pa.string(), size=len(ids))
            mask = pc.is_in(normal, value_set=wanted).to_numpy(zero_copy_only=False)
            low, high = np.searchsorted(picked, [first, first + len(ids)])
            mask[picked[low:high] - first] = True
            if mask.any():
                column = file.read_row_group(group, columns=[list_name]).column(0).combine_chunks()
                rows = np.flatnonzero(mask)
                chosen = column.take(pa.array(rows))
                parts.append(unit_rows(chosen, width, shard.location, first).numpy())
                names += [ids[row] for row in rows]
            first += len(ids)
