"""The mapped cache: same pixels, identified by content, rebuilt when damaged."""

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from promptcal.api import fit
from promptcal.data import ImageSet
from promptcal.data.cache import cache_key, decode_to_file
from promptcal.data.sources import ArchiveSource
from promptcal.data.store import decode
from promptcal.errors import DataError
from promptcal.runtime.files import temporary_mining_streams
from promptcal.runtime.locking import try_lock


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    generator = np.random.default_rng(0)
    for i in range(6):
        Image.fromarray(generator.integers(0, 256, (40 + 5 * i, 50, 3), dtype=np.uint8)).save(root / f"{i}.png")
    return root


def the_files(cache):
    return sorted(p.name for p in cache.iterdir())


def test_holds_what_decoding_gives_and_is_reused(folder, tmp_path):
    images = ImageSet.of(folder)
    expected, _, _ = decode(images, 36)
    counts = []
    for _ in range(2):
        store, kept, faults = decode_to_file(images, 36, tmp_path / "cache", on_progress=counts.append)
        assert torch.equal(store.pixels, expected.pixels)
        assert torch.equal(store.offsets, expected.offsets)
        assert (kept, faults) == (list(range(6)), [])
    assert counts == [1, 2, 3, 4, 5, 6, 6, 6]  # decoded once, found the second time
    assert len(the_files(tmp_path / "cache")) == 2


def test_key_changes_with_content_name_and_size(folder):
    key = cache_key(ImageSet.of(folder), 36)
    assert cache_key(ImageSet.of(folder), 36) == key
    assert cache_key(ImageSet.of(folder), 37) != key
    (folder / "0.png").rename(folder / "00.png")
    renamed = cache_key(ImageSet.of(folder), 36)
    assert renamed != key
    Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(folder / "00.png")
    assert cache_key(ImageSet.of(folder), 36) != renamed


def test_key_tells_images_with_the_same_stored_pixels_apart():
    tall, wide = (np.arange(96, dtype=np.uint8).reshape(1, *shape, 3) for shape in ((8, 4), (4, 8)))
    assert cache_key(ImageSet.of(tall), 8) != cache_key(ImageSet.of(wide), 8)
    encoded = []
    for colour in ((255, 0, 0), (0, 255, 0)):
        image = Image.new("P", (4, 4))
        image.putpalette(colour)
        file = io.BytesIO()
        image.save(file, "PNG")
        encoded.append(np.frombuffer(file.getvalue(), dtype=np.uint8))
    keys = {cache_key(ImageSet(["a"], ArchiveSource(data, [(0, len(data))])), 8) for data in encoded}
    assert len(keys) == 2
    broken = ImageSet(["a"], ArchiveSource(np.zeros(9, np.uint8), [(0, 9)]))
    assert cache_key(broken, 8) == cache_key(broken, 8)
    other = tall.copy()
    other[0, 7, 3, 2] += 1
    assert cache_key(ImageSet.of(tall), 8) == cache_key(ImageSet.of(tall.copy()), 8) != cache_key(ImageSet.of(other), 8)


def test_runs_side_by_side_can_share_a_cache(folder, tmp_path):
    images = ImageSet.of(folder)
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: decode_to_file(images, 36, tmp_path / "cache")[0], range(4)))
    assert all(torch.equal(store.pixels, stores[0].pixels) for store in stores)
    assert len(the_files(tmp_path / "cache")) == 2


@pytest.mark.parametrize("damage", ["flip a byte", "truncate", "no index", "garbage index"])
def test_a_damaged_cache_is_rebuilt(folder, tmp_path, damage):
    images, cache = ImageSet.of(folder), tmp_path / "cache"
    decode_to_file(images, 36, cache)
    pixels, index = next(cache.glob("*.pixels")), next(cache.glob("*.json"))
    data = bytearray(pixels.read_bytes())
    if damage == "flip a byte":
        data[100] ^= 1
        pixels.write_bytes(data)
    elif damage == "truncate":
        pixels.write_bytes(data[:-1])
    elif damage == "no index":
        index.unlink()
    else:
        index.write_text(json.dumps({"sizes": 3}))
    store, _, _ = decode_to_file(images, 36, cache)
    assert torch.equal(store.pixels, decode(images, 36)[0].pixels)


def test_unreadable_images_are_remembered(folder, tmp_path):
    (folder / "3.png").write_bytes(b"no image")
    images, cache = ImageSet.of(folder), tmp_path / "cache"
    for _ in range(2):
        with pytest.raises(DataError, match="cannot read 3.png"):
            decode_to_file(images, 36, cache)
        _, kept, faults = decode_to_file(images, 36, cache, skip_unreadable=True)
        assert kept == [0, 1, 2, 4, 5]
        assert [name for name, _ in faults] == ["3.png"]


@pytest.mark.slow
def test_a_fit_is_the_same_whatever_the_store(tmp_path, small_set, quick_settings):
    images, _, labels = small_set
    outcomes = []
    for store in ("memory", "mapped", "stream"):
        settings = (*quick_settings, f"data.store={store}", "warmup.epochs=1", "affinity.epochs=1")
        options = {"n_classes": 4, "output": tmp_path / store, "overrides": settings, "progress": False}
        run = fit(images=images, labels=labels, **options, report=False)
        embeddings = (tmp_path / store / "embeddings.npy").read_bytes()
        outcomes.append((embeddings, run.directory.assignments_file.read_text()))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len(the_files(tmp_path / "promptcal-cache")) == 2


def test_what_a_killed_process_left_is_removed_and_nothing_else(folder, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    left, at_work, fresh = (temporary_mining_streams(cache / f"{name}.pixels") for name in ("left", "at-work", "fresh"))
    for path in (left, at_work, fresh):
        path.write_bytes(b"half")
    for path in (left, at_work):
        os.utime(path, (0, 0))
    with at_work.open("rb+") as file:
        assert try_lock(file.fileno())
        decode_to_file(ImageSet.of(folder), 36, cache)
    assert not left.exists()
    assert at_work.exists()
    assert fresh.exists()


def test_leftovers_that_cannot_be_opened_are_passed_over(folder, tmp_path):
    """A folder, a link to itself and a pipe at the name of a temporary file; a cache is shared by users."""
    cache = tmp_path / "cache"
    cache.mkdir()
    folder_there, circle, pipe = (cache / f".{name}.pixels.0123456789ab.tmp" for name in "abc")
    folder_there.mkdir()
    circle.symlink_to(circle)
    os.mkfifo(pipe)
    decode_to_file(ImageSet.of(folder), 36, cache)
    assert len(the_files(cache)) == 5


@pytest.mark.timeout(30)
@pytest.mark.parametrize("suffix", [".pixels", ".json"])
def test_a_pipe_in_a_cache_is_refused(folder, tmp_path, suffix):
    images, cache = ImageSet.of(folder), tmp_path / "cache"
    decode_to_file(images, 36, cache)
    place = cache / f"{cache_key(images, 36)}{suffix}"
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(OSError, match="it is a pipe or a device"):
        decode_to_file(images, 36, cache)
