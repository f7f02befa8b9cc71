"""Zoomed views against PyTorch's own grid sampling, whatever the images are stored in."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from promptcal.data import ImageStore, View
from promptcal.data.enlarge import enlarging_matrix
from promptcal.data.zoom import between_pixels, each_zoomed, zoomed

SIZE, ZOOM = 24, 0.3
UNCHANGED = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in [(40, 60), (33, 24), (24, 24), (25, 97)]]


def sampled(image, draws):
    """A square of the image by ``grid_sample``, whose coordinates run from -1 to 1 over all pixels' areas."""
    _, height, width = image.shape
    extent = SIZE * (ZOOM + (1 - ZOOM) * draws[3]) ** 0.5
    steps = (torch.arange(SIZE, dtype=torch.float64) + 0.5) * extent / SIZE
    y = 2 * (draws[0] * (height - extent) + steps) / height - 1
    x = 2 * (draws[1] * (width - extent) + steps) / width - 1
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=2).flip(2)
    found = torch.nn.functional.grid_sample(
        image[None].double(), grid[None], mode="bilinear", padding_mode="border", align_corners=False
    )[0]
    return found.flip(2) if draws[2] < 0.5 else found


def test_zoomed_views_equal_grid_sampling(arrays):
    index = torch.arange(4).repeat(8)
    view = View(ImageStore.of(arrays), SIZE, *UNCHANGED, zoom=ZOOM)
    draws = view.draws(len(index), torch.Generator().manual_seed(0))
    assert draws.shape == (4, len(index))
    for found, i, of_view in zip(view.cropped(index, draws), index, draws.T.double(), strict=True):
        expected = sampled(torch.from_numpy(arrays[i].transpose(2, 0, 1).copy()), of_view)
        assert (found - expected).abs().max() < 0.5 + 1e-3  # rounded to whole levels


def test_the_gathers_of_a_gpu_give_what_a_cpu_makes_one_by_one(arrays):
    store, index = ImageStore.of(arrays), torch.tensor([3, 0, 2, 1, 0])
    random = torch.rand(4, 5, generator=torch.Generator().manual_seed(1))
    extent = 10 + 14 * random[0]
    rows = between_pixels(random[1] * (store.heights[index] - extent), extent, store.heights[index], SIZE)
    columns = between_pixels(
        random[2] * (store.widths[index] - extent), extent, store.widths[index], SIZE, random[3] < 0.5
    )
    gathered = zoomed(store, index, rows, columns)
    one_by_one = torch.stack(list(each_zoomed(store, index, rows, columns)))
    assert (gathered.int() - one_by_one.int()).abs().max() <= 1
    assert (gathered == one_by_one).float().mean() > 0.999


def test_small_images_are_zoomed_as_their_enlargements_are():
    small = np.random.default_rng(2).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    matrix = enlarging_matrix(16, 40).double().numpy()
    large = np.einsum("ij,njkc,lk->nilc", matrix, small.astype(np.float64), matrix).round().clip(0, 255)
    index = torch.arange(5)
    views = [
        View(ImageStore.of(list(images)), SIZE, *UNCHANGED, resize=40, zoom=ZOOM)
        for images in (small, large.astype(np.uint8))
    ]
    assert views[0]._enlarging is not None
    assert views[1]._enlarging is None
    found, expected = (view.random(index, torch.Generator().manual_seed(3)) for view in views)
    # bicubic weights overshoot, and what is cut off at 0 and 255 is cut off before or after mixing
    assert (found - expected).abs().median() <= 1
    assert ((found - expected).abs() <= 2).float().mean() > 0.97


def test_zoomed_squares_are_even_in_area_and_stay_within_the_image():
    """Pixels say where they lie, so that a view's first and last ones tell where it was taken."""
    rows, columns = np.mgrid[:60, :80]
    store = ImageStore.of([np.stack([rows * 4, columns * 3, rows * 0], axis=2).astype(np.uint8)])
    view = View(store, SIZE, *UNCHANGED, zoom=ZOOM)
    views = view.random(torch.zeros(4000, dtype=torch.long), torch.Generator().manual_seed(4))
    step = (views[:, 0, -1, 0] - views[:, 0, 0, 0]) / 4 / (SIZE - 1)  # stored pixels between two of the view's
    areas = step.square().numpy()
    assert kstest(areas, "uniform", (ZOOM, 1 - ZOOM)).statistic < 0.04
    first = views[:, 0, 0, 0] / 4
    start = first - step / 2 + 0.5
    assert start.min() > -0.3
    assert (start + SIZE * step).max() < 60.3
    share = start / (60 - SIZE * step)
    assert kstest(share.numpy(), "uniform").statistic < 0.04
    mirrored = (views[:, 1, 0, 0] > views[:, 1, 0, -1]).float()
    assert abs(mirrored.mean() - 0.5) < 0.04


def test_without_zoom_nothing_changes(arrays):
    plain, whole = (View(ImageStore.of(arrays), SIZE, *UNCHANGED, **given) for given in ({}, {"zoom": 1.0}))
    index = torch.arange(4)
    first, second = (view.random(index, torch.Generator().manual_seed(5)) for view in (plain, whole))
    assert torch.equal(first, second)
    centre = View(ImageStore.of(arrays), SIZE, *UNCHANGED, zoom=ZOOM).centre(index)
    assert torch.equal(centre, plain.centre(index))
