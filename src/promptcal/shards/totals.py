"""Statistics of all rows of a folder of assignments, read column by column."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from promptcal.errors import RunError
from promptcal.runtime.files import file_digest
from promptcal.shards.full_disk import explained_disk_errors
from promptcal.shards.manifest import ShardFile
from promptcal.shards.parquet_images import opened_parquet
from promptcal.shards.shard_folder import ShardFolder

BINS = 20  # of the histogram of confidences
_COLUMNS = ["cluster", "confidence", "decision"]
_ROWS = 2**18


class CategoryTotals(ShardFile):
    """A category in all rows: ``images`` are accepted, ``none`` are nearest to it, but in none of the categories."""

    name: str
    images: int
    none: int
    confidence: float | None


class ShardTotals(ShardFile):
    """`totals.json`: of all categories; ``manifest`` is the SHA-256 of the manifest that it was computed for.

    ``histogram`` has the number of accepted images by confidence, in equal bins from 0 to 1.
    """

    manifest: str
    images: int
    unreadable: int
    none: int
    histogram: list[int]
    categories: list[CategoryTotals]


def read_totals(
    folder: ShardFolder, names: list[str], on_progress: Callable[[int], None] = lambda done: None
) -> ShardTotals:
    """The statistics of a finished folder of assignments to the categories ``names``; they are stored in it."""
    manifest = folder.manifest()
    if manifest.work.get("output") != "assignments":
        raise RunError(f"{folder.path} has embeddings, but no categories; give an output of `promptcal predict`")
    digest = file_digest(folder.manifest_file)
    if folder.totals_file.is_file():
        stored = ShardTotals.read(folder.totals_file)
        if stored.manifest == digest and [category.name for category in stored.categories] == names:
            return stored
    n = len(names)
    accepted, none = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    sums, histogram = np.zeros(n), np.zeros(BINS, dtype=np.int64)
    for number, shard in enumerate(manifest.shards, 1):
        for clusters, confidence, is_accepted in _blocks(folder, shard.name):
            if len(clusters) and not 0 <= clusters.min() <= clusters.max() < n:
                raise RunError(f"{folder.path} has categories that the run does not have; give shards of this run")
            own, shares = clusters[is_accepted], confidence[is_accepted]
            accepted += np.bincount(own, minlength=n)
            none += np.bincount(clusters[~is_accepted], minlength=n)
            sums += np.bincount(own, weights=shares, minlength=n)
            histogram += np.histogram(shares.clip(0, 1), bins=BINS, range=(0, 1))[0]
        on_progress(number)
    totals = ShardTotals(
        manifest=digest,
        images=manifest.rows,
        unreadable=manifest.unreadable,
        none=int(none.sum()),
        histogram=histogram.tolist(),
        categories=[
            CategoryTotals(
                name=name,
                images=int(accepted[i]),
                none=int(none[i]),
                confidence=float(sums[i] / accepted[i]) if accepted[i] else None,
            )
            for i, name in enumerate(names)
        ],
    )
    with explained_disk_errors("`promptcal report`"):
        totals.write(folder.totals_file)
    return totals


def _blocks(folder: ShardFolder, name: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Categories, confidences, and which rows are accepted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = {"cluster": pa.int32(), "confidence": pa.float32(), "decision": pa.string()}
    with opened_parquet(str(folder.file(name))) as file:
        for batch in file.iter_batches(_ROWS, columns=_COLUMNS):
            if set(batch.schema.names) != types.keys():
                raise _damaged(folder.file(name), f"it needs the columns {', '.join(_COLUMNS)}")
            columns = {column: batch.column(column).cast(kind) for column, kind in types.items()}
            confidence = columns["confidence"].to_numpy(zero_copy_only=False)
            if any(column.null_count for column in columns.values()) or not np.isfinite(confidence).all():
                raise _damaged(folder.file(name), "it has missing values, or values that are not finite")
            decisions = pc.equal(columns["decision"], "accepted")
            yield columns["cluster"].to_numpy(), confidence, decisions.to_numpy(zero_copy_only=False)


def _damaged(file: Path, reason: str) -> RunError:
    return RunError(f"{file} is damaged ({reason}); write its folder again")
