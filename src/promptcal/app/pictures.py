"""Pictures of a run's images for the page: made from the original files when they are asked for, in a bounded cache.

If a file is gone, or the images were no files, the stored thumbnail of the run is used.
"""

import io
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from promptcal.data.decoding import UnreadableImage
from promptcal.data.images import ImageSet
from promptcal.data.sources import FileSource
from promptcal.errors import RunError
from promptcal.report.thumbnails import Thumbnails
from promptcal.run.stored_run import StoredRun, reject_path_traversal

SIDES = (160, 320, 640, 1600)  # pixels of the longer side: the grid, on screens of two pixels by point, the viewer
MAX_CACHED_BYTES = 64_000_000
_LOOKED_AT = 25  # files that are looked for when a run is opened
_SMALL = 64  # pixels; JPEG would blur an image of this size


class Picture(NamedTuple):
    """``is_original``: made from the original file."""

    data: bytes
    media_type: str
    is_original: bool


class Pictures:
    """Encoded pictures by image and side. It can be used by several threads."""

    def __init__(self, run: StoredRun, paths: list[str], max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._folder = run.directory.thumbnails_folder
        self._n_images = len(paths)
        self._originals: ImageSet | None = None
        if run.info.folder is not None:
            if run.info.root is not None:
                reject_path_traversal(paths, run.path)
            folder = Path(run.info.folder)
            self._originals = ImageSet(paths, FileSource([folder / path for path in paths]))
        self._max_bytes = max_bytes
        self._cache: OrderedDict[tuple[int, int], Picture] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()
        self._stored: Thumbnails | None = None
        self._position: dict[int, int] | None = None

    @property
    def n_bytes(self) -> int:
        """The size of the pictures in the cache."""
        return self._n_bytes

    def n_missing(self) -> tuple[int, int]:
        """How many of a few evenly chosen files are gone, and how many were looked for."""
        if self._originals is None or not self._n_images:
            return 0, 0
        chosen = range(0, self._n_images, max(1, self._n_images // _LOOKED_AT))
        source = self._originals.source
        return sum(not (path := source.path(i)) or not path.is_file() for i in chosen), len(chosen)

    def get(self, image: int, side: int) -> Picture | None:
        """The picture, with at most ``side`` pixels on its longer side; None if there is none."""
        key = image, side
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        made = self._make(image, side)
        if made is not None:
            with self._lock:
                if key not in self._cache:
                    self._cache[key] = made
                    self._n_bytes += len(made.data)
                while self._n_bytes > self._max_bytes and len(self._cache) > 1:
                    self._n_bytes -= len(self._cache.popitem(last=False)[1].data)
        return made

    def _make(self, image: int, side: int) -> Picture | None:
        if self._originals is not None:
            try:
                return _encode(self._originals.thumbnail(image, side), is_original=True)
            except (UnreadableImage, OSError):
                pass  # the stored thumbnail is shown
        stored = self._stored_tile(image)
        return None if stored is None else _encode(stored, is_original=False)

    def _stored_tile(self, image: int) -> Image.Image | None:
        with self._lock:
            if self._position is None:
                try:
                    self._stored = Thumbnails.read(self._folder, self._n_images)
                    self._position = {int(shown): tile for tile, shown in enumerate(self._stored.images)}
                except RunError:
                    self._position = {}
            if self._stored is None or image not in self._position:
                return None
            try:
                return self._stored.tile(self._position[image])
            except RunError:
                return None


def _encode(image: Image.Image, *, is_original: bool) -> Picture:
    buffer = io.BytesIO()
    if max(image.size) <= _SMALL:
        image.save(buffer, format="PNG")
        return Picture(buffer.getvalue(), "image/png", is_original)
    image.save(buffer, format="JPEG", quality=85)
    return Picture(buffer.getvalue(), "image/jpeg", is_original)
