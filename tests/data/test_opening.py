"""Only common image formats of limited size are opened, and large images are decoded one at a time."""

import multiprocessing
import sys
import threading
from io import BytesIO

import pytest
from broken_files import POSTSCRIPT, png
from PIL import Image

from promptcal.data.decoding import MAX_PIXELS, is_image, large_image_lock, open_image

LARGE, SMALL = Image.new("1", (5000, 4000)), Image.new("1", (50, 40))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width", "height"), [(9500, 9500), (MAX_PIXELS + 1, 1), (1, MAX_PIXELS + 1)])
def test_images_with_too_many_pixels_are_refused_by_their_header(width, height):
    with pytest.raises(ValueError, match=f"of {width} x {height} pixels, over 89 million in all"):
        open_image(BytesIO(png(width, height)))
    assert open_image(BytesIO(png(9459, 9459))).size == (9459, 9459)


def test_postscript_is_no_image_here_though_pillow_would_run_it(tmp_path):
    assert Image.open(BytesIO(POSTSCRIPT)).format == "EPS"
    with pytest.raises(Image.UnidentifiedImageError):
        open_image(BytesIO(POSTSCRIPT))
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    (tmp_path / "b.txt").write_bytes(png(8, 8))
    assert [is_image(tmp_path / name) for name in ("a.png", "b.txt", "absent")] == [False, True, False]


def entered(image):
    """A thread that takes its turn, and whether it got it yet."""
    got = threading.Event()

    def enter():
        with large_image_lock(image):
            got.set()

    threading.Thread(target=enter, daemon=True).start()
    return got


def test_large_images_wait_for_each_other_and_small_ones_do_not():
    with large_image_lock(LARGE):
        waiting = entered(LARGE)
        assert entered(SMALL).wait(10)
        assert not waiting.wait(0.3)
    assert waiting.wait(10)


def _take_a_turn():
    with large_image_lock(LARGE):
        sys.exit(0)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_forked_while_a_large_image_is_decoded_does_not_wait_for_ever():
    with large_image_lock(LARGE):
        child = multiprocessing.get_context("fork").Process(target=_take_a_turn)
        child.start()
        child.join(20)
    code = child.exitcode
    child.kill()
    assert code == 0
