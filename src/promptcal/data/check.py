"""Find problems in a set of images and labels before a fit: unreadable files, duplicates, imbalance."""

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image
from scipy.fft import dctn
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from promptcal.data.class_sizes import are_imbalanced
from promptcal.data.decoding import HEIC_REMEDY, UnreadableImage
from promptcal.data.images import ImageSet
from promptcal.data.labels import class_count_fault, class_numbers, spelled_differently
from promptcal.errors import shorten
from promptcal.runtime.frames import data_frame, html_table

MAX_DISTANCE = 16
MAX_SIDE = 65_535  # pixels, of a JPEG
_HASH_BITS = 64
_THUMBNAIL_TOLERANCE = 12.0  # mean difference of thumbnails; copies are below it, images that only share a hash are not
_IMBALANCE_ADVICE = (
    "fit expects no equal sizes then (clustering.prior=auto); if only the labels are uneven and the classes are not, "
    "use --set clustering.prior=balanced"
)
_PAIRS_AT_ONCE = 1_000_000
_MAX_SHOWN = 200  # characters of the cases of a finding in a notebook
Pairs = tuple[np.ndarray, np.ndarray]  # positions of the first and of the second image of each pair


@dataclass(frozen=True)
class Fingerprint:
    """The features of one readable image that are compared to find duplicates."""

    width: int
    height: int
    digest: bytes
    hash: np.uint64
    thumbnail: np.ndarray

    @classmethod
    def of(cls, image: Image.Image) -> "Fingerprint":
        digest = hashlib.sha256(f"{image.width} x {image.height}".encode())
        digest.update(np.asarray(image).data)
        thumbnail = np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR)).ravel()
        return cls(image.width, image.height, digest.digest(), perceptual_hash(image), thumbnail)


@dataclass(frozen=True)
class Duplicates:
    """Equal or nearly equal images, and the label (or None) of each."""

    paths: list[str]
    labels: list[str | None]

    @property
    def classes(self) -> set[str]:
        return {label for label in self.labels if label is not None}

    @property
    def label_status(self) -> str:
        """Whether the images are labelled, unlabelled or both."""
        if not self.classes:
            return "unlabelled"
        return "labelled and unlabelled" if None in self.labels else "labelled"

    def described(self, sign: str) -> str:
        pairs = zip(self.paths, self.labels, strict=True)
        return sign.join(path if label is None else f"{path} ({label})" for path, label in pairs)


@dataclass(frozen=True)
class Finding:
    """One kind of problem, its amount, and a description of every case."""

    what: str
    amount: str
    cases: list[str]


@dataclass(frozen=True)
class CheckReport:
    """The result of `check_images`. Every image is counted once: in its class, as unlabelled, or as unreadable."""

    n_images: int
    labelled: dict[str, int]
    n_unlabelled: int
    unreadable: list[tuple[str, str]]
    tiny: list[tuple[str, int, int]]
    exact: list[Duplicates]
    near: list[Duplicates]
    ignored: list[str]
    n_classes: int | None = None

    def __repr__(self) -> str:
        return f"CheckReport({self.description})"

    def _repr_html_(self) -> str:
        rows = [(kind, f.what, f.amount, shorten("; ".join(f.cases), _MAX_SHOWN)) for kind, f in self._findings()]
        return html_table(("kind", "finding", "amount", "cases"), rows, self.description)

    @property
    def description(self) -> str:
        """Numbers of images, classes and findings in one line."""
        findings = f"{_count(self.problems, 'problem')}, {_count(self.warnings, 'warning')}"
        return f"{self.n_images} images, {_count(self.labelled, 'class')}: {findings}"

    def _findings(self) -> list[tuple[str, Finding]]:
        return [("problem", found) for found in self.problems] + [("warning", found) for found in self.warnings]

    def to_pandas(self) -> Any:
        """The findings for pandas, which must be installed.

        Returns:
            A data frame with one row per case and the columns kind (problem or warning), finding and case.
        """
        rows = [(kind, found.what, case) for kind, found in self._findings() for case in found.cases]
        return data_frame({name: [row[i] for row in rows] for i, name in enumerate(("kind", "finding", "case"))})

    @property
    def imbalance(self) -> float | None:
        """Labels of the largest class divided by those of the smallest; None without labels or if a class has none."""
        counts = self.labelled.values()
        return max(counts) / min(counts) if counts and min(counts) else None

    @property
    def problems(self) -> list[Finding]:
        """Findings that stop a fit or make its result wrong."""
        contradictions = [d for d in self.exact if len(d.classes) > 1]
        n_labelled = sum(self.labelled.values())
        fault = None
        if self.n_classes is not None and self.n_unlabelled:
            fault = class_count_fault(self.n_classes, len(self.labelled), self.n_unlabelled)
        return _non_empty(
            Finding("cannot be read", _count(self.unreadable, "file"), [f"{p}: {why}" for p, why in self.unreadable]),
            _duplicate_finding("same image, two classes", " = ", contradictions),
            _note(n_labelled + self.n_unlabelled < 2, "too few images", "a fit needs at least 2 that can be read"),
            _note(n_labelled > 0 == self.n_unlabelled, "nothing unlabelled", "a fit would have nothing to discover"),
            _note(fault is not None, "number of classes", fault or ""),
        )

    @property
    def warnings(self) -> list[Finding]:
        """Findings that do not stop a fit."""
        scarce = [f"{name}: {count}" for name, count in self.labelled.items() if count < 2]
        largest, smallest = (f(self.labelled, key=self.labelled.__getitem__, default="") for f in (max, min))
        alike = [" = ".join(group) for group in spelled_differently(self.labelled)]
        extremes = f"{largest}: {self.labelled.get(largest)}, {smallest}: {self.labelled.get(smallest)}"
        return _non_empty(
            _duplicate_finding("near duplicates, two classes", " ~ ", [d for d in self.near if len(d.classes) > 1]),
            *_by_label_status("exact duplicates", " = ", [d for d in self.exact if len(d.classes) < 2]),
            *_by_label_status("near duplicates", " ~ ", [d for d in self.near if len(d.classes) < 2]),
            Finding("ignored", _count(self.ignored, "file"), [f"{path}: {HEIC_REMEDY}" for path in self.ignored]),
            Finding("tiny", _count(self.tiny, "image"), [f"{p}: {w} x {h} pixels" for p, w, h in self.tiny]),
            Finding("differ only in letter case", _count(alike, "class"), alike),
            Finding("fewer than 2 labels", _count(scarce, "class"), scarce),
            _note(are_imbalanced([*self.labelled.values()]), "imbalanced classes", f"{extremes}; {_IMBALANCE_ADVICE}"),
            _note(
                self.n_classes is not None and len(self.labelled) == self.n_classes > 0 < self.n_unlabelled,
                "no new category",
                f"{self.n_classes} classes have labels, so --n-classes {self.n_classes} leaves no new one to discover",
            ),
            _note(not self.labelled, "no labels", "a fit would be plain k-means on the backbone's features"),
        )

    def as_dict(self) -> dict[str, Any]:
        """All findings in full, for JSON."""
        return {
            "images": self.n_images,
            "labelled": self.labelled,
            "unlabelled": self.n_unlabelled,
            "n_classes": self.n_classes,
            "imbalance": self.imbalance,
            "unreadable": [{"path": path, "reason": reason} for path, reason in self.unreadable],
            "ignored": self.ignored,
            "tiny": [{"path": path, "width": width, "height": height} for path, width, height in self.tiny],
            "exact_duplicates": [asdict(d) for d in self.exact],
            "near_duplicates": [asdict(d) for d in self.near],
            "problems": [asdict(finding) for finding in self.problems],
            "warnings": [asdict(finding) for finding in self.warnings],
        }


def check_images(
    images: ImageSet,
    labels: Sequence[str | None],
    *,
    n_classes: int | None = None,
    min_side: int = 32,
    near_distance: int = 4,
    on_progress: Callable[[int], None] = lambda done: None,
) -> CheckReport:
    """Read every image once. Near duplicates differ in at most ``near_distance`` of 64 hash bits. ``n_classes`` is the
    number of categories that a fit is to find, if it is known."""

    def read(i: int) -> Fingerprint | UnreadableImage:
        try:
            return Fingerprint.of(images.usable_image(i))
        except UnreadableImage as fault:
            return fault

    fingerprints: dict[int, Fingerprint] = {}
    unreadable = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for i, result in enumerate(pool.map(read, range(len(images)))):
            if isinstance(result, UnreadableImage):
                unreadable.append((images.names[i], str(result)))
            else:
                fingerprints[i] = result
            on_progress(i + 1)
    exact, near = duplicate_groups(list(fingerprints.values()), near_distance)
    positions = list(fingerprints)

    def named(groups: list[list[int]]) -> list[Duplicates]:
        members = [[positions[i] for i in group] for group in groups]
        return [Duplicates([images.names[i] for i in group], [labels[i] for i in group]) for group in members]

    counts = Counter(labels[i] for i in positions)
    return CheckReport(
        len(images),
        {name: counts[name] for name in class_numbers(labels)[1]},
        counts[None],
        unreadable,
        [(images.names[i], f.width, f.height) for i, f in fingerprints.items() if min(f.width, f.height) < min_side],
        named(exact),
        named(near),
        list(images.ignored),
        n_classes,
    )


def perceptual_hash(image: Image.Image) -> np.uint64:
    """64 bits that are similar for similar images: which low frequencies of the brightness are above their median."""
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float64)
    frequencies = dctn(grey, norm="ortho")[:8, :8].ravel()
    return np.packbits(frequencies > np.median(frequencies[1:])).view(np.uint64)[0]


def duplicate_groups(fingerprints: Sequence[Fingerprint], distance: int) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of images with equal pixels, and groups of near duplicates whose pixels are not all equal."""
    if not fingerprints:
        return [], []
    contents = _positions_by_value([fingerprint.digest for fingerprint in fingerprints])
    distinct = [fingerprints[members[0]] for members in contents]
    hashes = np.array([f.hash for f in distinct], dtype=np.uint64)
    thumbnails = np.array([f.thumbnail for f in distinct], dtype=np.int16).reshape(len(distinct), -1)
    similar = (_with_similar_colours(thumbnails, first, second) for first, second in near_pairs(hashes, distance))
    near = [sorted(itertools.chain(*(contents[i] for i in group))) for group in connected(len(distinct), similar)]
    return [members for members in contents if len(members) > 1], near


def _positions_by_value(values: Iterable[Any]) -> list[list[int]]:
    positions: dict[Any, list[int]] = {}
    for i, value in enumerate(values):
        positions.setdefault(value, []).append(i)
    return list(positions.values())


def _with_similar_colours(thumbnails: np.ndarray, first: np.ndarray, second: np.ndarray) -> Pairs:
    """The pairs whose colours are similar too: uniform images have equal hashes whatever their colour."""
    same = np.abs(thumbnails[first] - thumbnails[second]).mean(axis=1) <= _THUMBNAIL_TOLERANCE
    return first[same], second[same]


def near_pairs(hashes: np.ndarray, distance: int) -> Iterator[Pairs]:
    """All pairs of 64-bit hashes that differ in at most ``distance`` bits, each once, in chunks.

    Two such hashes are equal in at least one of distance + 1 bands, so only hashes that share a band are compared.
    """
    bands = _bands(distance + 1)
    for number, band in enumerate(bands):
        order = np.argsort(hashes & band, kind="stable")
        keys = (hashes & band)[order]
        start = np.arange(len(hashes))
        for step in range(1, len(hashes)):
            start = start[start + step < len(hashes)]
            start = start[keys[start] == keys[start + step]]
            if not len(start):
                break
            first, second = order[start], order[start + step]
            difference = hashes[first] ^ hashes[second]
            wanted = _ones(difference) <= distance
            for earlier in bands[:number]:  # pairs that share an earlier band were found there
                wanted &= (difference & earlier) != 0
            yield first[wanted], second[wanted]


def connected(n: int, pairs: Iterable[Pairs]) -> list[list[int]]:
    """Connected components with two or more members of a graph on 0..n-1; memory does not grow with the pairs."""
    group = np.arange(n)
    pending: list[Pairs] = []
    n_pending = 0
    for first, second in pairs:
        pending.append((first, second))
        n_pending += len(first)
        if n_pending > _PAIRS_AT_ONCE:
            group, pending, n_pending = _merged(group, pending), [], 0
    group = _merged(group, pending)
    return [members for members in _positions_by_value(group.tolist()) if len(members) > 1]


def _merged(group: np.ndarray, pairs: list[Pairs]) -> np.ndarray:
    """The group number of each member after merging the groups that the pairs connect."""
    if not pairs:
        return group
    # int32, because older SciPy silently misreads int64
    first, second = (group[np.concatenate(side)].astype(np.int32) for side in zip(*pairs, strict=True))
    graph = coo_array((np.ones(len(first), dtype=np.int8), (first, second)), shape=(len(group), len(group)))
    return connected_components(graph, directed=False)[1][group]


def _bands(count: int) -> list[np.uint64]:
    edges = [_HASH_BITS * i // count for i in range(count + 1)]
    return [np.uint64((1 << high) - (1 << low)) for low, high in itertools.pairwise(edges)]


def _ones(numbers: np.ndarray) -> np.ndarray:
    """The number of set bits of each 64-bit number."""
    return np.unpackbits(numbers.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1)


def _non_empty(*findings: Finding) -> list[Finding]:
    return [finding for finding in findings if finding.cases]


def _note(holds: bool, what: str, why: str) -> Finding:
    return Finding(what, "", [why] if holds else [])


def _by_label_status(what: str, sign: str, groups: list[Duplicates]) -> list[Finding]:
    return [
        _duplicate_finding(f"{what}, {status}", sign, [d for d in groups if d.label_status == status])
        for status in ("labelled and unlabelled", "labelled", "unlabelled")
    ]


def _duplicate_finding(what: str, sign: str, groups: list[Duplicates]) -> Finding:
    n_images = sum(len(group.paths) for group in groups)
    return Finding(what, f"{n_images} images in {_count(groups, 'group')}", [group.described(sign) for group in groups])


def _count(things: Collection[Any], name: str) -> str:
    plural = f"{name}es" if name.endswith("s") else f"{name}s"
    return f"{len(things)} {name if len(things) == 1 else plural}"
