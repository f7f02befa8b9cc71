"""Finding images by folder, list or array, and decoding whatever an image file may be."""

import os
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from promptcal.data import ImageSet
from promptcal.data.decoding import UnreadableImage
from promptcal.data.store import decode
from promptcal.errors import DataError


def picture(height=12, width=20, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path, array=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture() if array is None else array).save(path, **options)
    return path


def pixels(path):
    return np.asarray(ImageSet.of(path).image(0))


# -- where images come from -----------------------------------------------------------------------------------


def test_a_folder_gives_all_images_below_it_sorted_by_name(tmp_path):
    names = ["b.PNG", "a b/ü ñ.jpg", "a b/2.webp", "z/deep/日本.bmp", "a.tif", "g.gif", "x.jpeg", "y.tiff"]
    for name in names:
        save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    save(tmp_path / "._a.jpg")
    save(tmp_path / ".thumbnails" / "a.jpg")
    found = ImageSet.of(tmp_path)
    expected = ["a b/2.webp", "a b/ü ñ.jpg", "a.tif", "b.PNG", "g.gif", "x.jpeg", "y.tiff", "z/deep/日本.bmp"]
    assert found.names == ImageSet.of(str(tmp_path)).names == expected
    assert len(found) == 8
    assert [found.image(i).size for i in range(8)] == [(20, 12)] * 8


@pytest.mark.timeout(10)
def test_links_are_followed_but_not_in_a_cycle(tmp_path):
    save(tmp_path / "a" / "1.png")
    save(tmp_path / "b" / "2.png")
    for i in range(5):
        (tmp_path / f"self{i}").symlink_to(tmp_path)
        (tmp_path / "a" / f"up{i}").symlink_to("..")
    assert ImageSet.of(tmp_path).names == ["a/1.png", "b/2.png"]
    (tmp_path / "a" / "to_b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "to_a").symlink_to(tmp_path / "a")
    assert ImageSet.of(tmp_path).names == ["a/1.png", "a/to_b/2.png", "b/2.png", "b/to_a/1.png"]


def test_a_list_keeps_its_order_and_names(tmp_path):
    files = [save(tmp_path / "b.png"), str(save(tmp_path / "a.png", picture(seed=1)))]
    images = ImageSet.of(files)
    assert images.names == [str(f) for f in files]
    assert np.array_equal(images.image(1), picture(seed=1))
    assert ImageSet.of(iter(files)).names == images.names
    assert ImageSet.of(images) is images
    assert ImageSet.of(files[0]).names == ["b.png"]


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy, np.asfortranarray])
def test_arrays_are_their_own_images(wrap):
    array = np.stack([picture(seed=s) for s in range(3)])
    images = ImageSet.of(wrap(array))
    assert len(set(images.names)) == 3
    assert all(np.array_equal(images.image(i), array[i]) for i in range(3))


def test_a_subset_of_a_subset_opens_the_right_images():
    array = np.stack([picture(seed=s) for s in range(6)])
    images = ImageSet.of(array).subset([5, 1, 3]).subset(np.array([2, 0]))
    assert images.names == ["image-000003", "image-000005"]
    assert np.array_equal(images.image(0), array[3])
    assert np.array_equal(images.image(1), array[5])


@pytest.mark.parametrize("images", [[], (), [1, 2], [np.zeros((8, 8)), "a"], 5, None, b"a.png", ["a", None]])
def test_other_objects_are_refused(images):
    with pytest.raises(DataError, match="a list of image files"):
        ImageSet.of(images)


def test_missing_files_missing_and_empty_folders_are_named(tmp_path):
    with pytest.raises(DataError, match="absent does not exist; check the path"):
        ImageSet.of(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=f"{tmp_path.name} contains no images"):
        ImageSet.of(tmp_path)
    there = save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"b\.png does not exist"):
        ImageSet.of([there, tmp_path / "b.png"])
    with pytest.raises(DataError, match="is a folder; pass it alone"):
        ImageSet.of([there, tmp_path])


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    save(tmp_path / "a.png")

    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"Permission denied.*check its permissions"):
        ImageSet.of(tmp_path)


def test_a_name_that_is_not_unicode_is_refused_before_anything_is_computed(tmp_path):
    try:
        with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes only Unicode names")
    with pytest.raises(DataError, match=r"caf\\udce9\.png.*rename"):
        ImageSet.of(tmp_path)


# -- decoding -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.webp", "a.jpg"])
def test_formats_give_their_pixels(tmp_path, name):
    smooth = np.full((16, 16, 3), (200, 100, 50), dtype=np.uint8)
    expected, options = {"a.webp": (picture(), {"lossless": True}), "a.jpg": (smooth, {"quality": 95})}.get(
        name, (picture(), {})
    )
    difference = pixels(save(tmp_path / name, expected, **options)).astype(int) - expected
    assert abs(difference).max() <= (3 if name == "a.jpg" else 0)


def test_of_an_animation_the_first_frame_is_taken(tmp_path):
    frames = [Image.new("RGB", (9, 7), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.array_equal(pixels(tmp_path / "a.gif"), np.full((7, 9, 3), (255, 0, 0)))


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: a.transpose(1, 0, 2)[:, ::-1]),
        (7, lambda a: a[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda a: a.transpose(1, 0, 2)[::-1]),
    ],
)
def test_exif_orientation_is_undone(tmp_path, orientation, upright):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(pixels(save(tmp_path / "a.png", exif=exif)), upright(picture()))


def test_grey_and_one_bit_images_become_three_equal_channels(tmp_path):
    grey = picture()[:, :, 0]
    for array, expected in ((grey, grey), (grey > 127, np.where(grey > 127, 255, 0))):
        assert np.array_equal(pixels(save(tmp_path / "a.png", array)), np.stack([expected] * 3, axis=2))


@pytest.mark.parametrize("transparent", [None, 1])
def test_palette_colours_are_looked_up_and_a_transparent_one_is_white(tmp_path, transparent):
    numbers = np.arange(60).reshape(6, 10) % 3
    image = Image.fromarray(numbers.astype(np.uint8))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    assert image.mode == "P"
    image.save(tmp_path / "a.png", **({} if transparent is None else {"transparency": transparent}))
    colours = np.eye(3) * 255
    if transparent is not None:
        colours[transparent] = 255
    assert np.array_equal(pixels(tmp_path / "a.png"), colours[numbers])


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_is_laid_over_white(tmp_path, channels):
    array = np.random.default_rng(0).integers(0, 256, (9, 11, channels), dtype=np.uint8)
    array[0, :, -1], array[1, :, -1] = 0, 255
    colour, alpha = array[:, :, :-1].astype(float), array[:, :, -1:] / 255
    expected = np.broadcast_to(colour * alpha + 255 * (1 - alpha), (9, 11, 3))
    found = pixels(save(tmp_path / "a.png", array))
    assert abs(found - expected).max() <= 1
    assert np.array_equal(found[:2], expected[:2])


def test_cmyk_is_converted(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    assert abs(pixels(tmp_path / "a.jpg").astype(int) - (255, 0, 0)).max() <= 4


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path, suffix):
    deep = np.linspace(0, 65535, 24 * 32).astype(np.uint16).reshape(24, 32)
    found = pixels(save(tmp_path / f"a.{suffix}", deep))
    assert np.array_equal(found, np.rint(deep / 257.0)[:, :, None].repeat(3, axis=2))
    assert (found.min(), found.max()) == (0, 255)


def test_big_endian_sixteen_bits_are_scaled(tmp_path):
    grey = picture()[:, :, 0]
    Image.frombytes("I;16B", (20, 12), (grey.astype(">u2") * 257).tobytes()).save(tmp_path / "a.tif")
    assert np.array_equal(pixels(tmp_path / "a.tif"), np.stack([grey] * 3, axis=2))


@pytest.mark.parametrize(("top", "dtype"), [(255, "i4"), (65535, "i4"), (2**31 - 1, "i4"), (1, "f4")])
def test_pixels_without_a_fixed_range_are_rejected(tmp_path, top, dtype):
    save(tmp_path / "a.tif", np.linspace(0, top, 64).astype(dtype).reshape(8, 8))
    kind = "floating-point" if dtype == "f4" else "32-bit or signed"
    with pytest.raises(UnreadableImage, match=f"{kind} pixels have no fixed range; save it with 8 or 16 bits"):
        pixels(tmp_path / "a.tif")


# -- what cannot be read --------------------------------------------------------------------------------------


def truncated(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


FAULTS = {
    "truncated.jpg": truncated,
    "truncated.png": truncated,
    "garbage.jpg": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "text.png": lambda path: path.write_text("this is no image"),
    "zero.jpg": lambda path: path.write_bytes(b""),
    "thin.png": lambda path: save(path, picture(2, 101)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_unreadable_image_is_named_with_the_remedy_or_left_out(tmp_path, name):
    save(tmp_path / "a.png", picture(40, 60))
    FAULTS[name](save(tmp_path / name, picture(40, 60)))
    images = ImageSet.of(tmp_path)
    with pytest.raises(DataError, match=rf"cannot read {name} \(.+\); remove it or pass --skip-unreadable"):
        decode(images, 8)
    store, kept, faults = decode(images, 8, skip_unreadable=True)
    assert (len(store), kept) == (1, [0])
    assert [faulty for faulty, _ in faults] == [name]
    assert faults[0][1]


def test_of_many_unreadable_images_the_first_is_named_and_each_is_reported_once(tmp_path):
    for name in FAULTS:
        FAULTS[name](save(tmp_path / name, picture(40, 60)))
    save(tmp_path / "m.png")
    images = ImageSet.of(tmp_path)
    with pytest.raises(DataError, match=r"cannot read garbage\.jpg \(not an image\) and 5 more"):
        decode(images, 8)
    progress = []
    _, kept, faults = decode(images, 8, skip_unreadable=True, on_progress=progress.append)
    assert [images.names[i] for i in kept] == ["m.png"]
    assert [name for name, _ in faults] == sorted(FAULTS)
    assert progress == list(range(1, 8))
    with pytest.raises(DataError, match="none of the images could be read"):
        decode(ImageSet.of(tmp_path / "zero.jpg"), 8, skip_unreadable=True)


def test_an_image_too_large_to_trust_is_unreadable(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableImage, match="bomb"):
        ImageSet.of(tmp_path).image(0)


@pytest.mark.parametrize("failure", [struct.error("short"), KeyError(3), TypeError(), IndexError("i"), MemoryError()])
def test_any_failure_of_a_decoder_makes_the_image_unreadable(failure):
    class FailingSource:
        def open(self, index):
            raise failure

    with pytest.raises(UnreadableImage, match=r".+"):
        ImageSet(["a.png"], FailingSource()).image(0)
