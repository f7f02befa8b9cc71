"""Crops of decoders have the pixels of images that are resized as a whole; processes return the same as one."""

import io

import numpy as np
import pytest
from PIL import Image

from promptcal.data import ImageSet
from promptcal.shards.decoders import CropSize, InlineDecoders, ProcessDecoders, centre_crop
from promptcal.shards.shard_sources import BytesSource, ImageChunk


def picture(width, height, seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(
    ("width", "height"), [(500, 375), (375, 500), (256, 256), (256, 300), (257, 400), (64, 48), (1000, 40), (33, 31)]
)
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (32, 32), (37, 32)])
def test_crops_have_the_pixels_of_predict(width, height, resize, crop):
    image = picture(width, height)
    whole = ImageSet.of([image]).resized(0, resize)
    top, left = (round((side - crop) / 2) for side in whole.shape[:2])
    expected = whole[top : top + crop, left : left + crop].astype(int)
    difference = np.abs(centre_crop(image, CropSize(resize, crop)).numpy() - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() < (0.01 if min(width, height) > resize else 1e-9)


def test_processes_return_what_one_returns():
    contents = []
    for i in range(10):
        file = io.BytesIO()
        picture(40 + i, 50, i).save(file, "JPEG")
        contents.append(file.getvalue())
    contents[3] = b"no image"
    ids = [str(i) for i in range(10)]
    chunks = [
        ImageChunk(ids[a : a + 4], ids[a : a + 4], ImageSet(ids[a : a + 4], BytesSource(contents[a : a + 4])))
        for a in (0, 4, 8)
    ]
    size = CropSize(36, 32)
    one, several = (list(d.map(chunks, size)) for d in (InlineDecoders(), ProcessDecoders(2)))
    assert [chunk.ids for chunk in one] == [["0", "1", "2"], ["4", "5", "6", "7"], ["8", "9"]]
    for a, b in zip(one, several, strict=True):
        assert (a.ids, a.faults) == (b.ids, b.faults)
        assert (a.crops == b.crops).all()
