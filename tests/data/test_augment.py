"""Each change of colours and sharpness against torchvision, image by image."""

import pytest
import torch
from torchvision.transforms.v2 import functional as vision

from promptcal.data import augment

IMAGES = torch.rand(6, 3, 20, 17, generator=torch.Generator().manual_seed(0))
IMAGES[1] = IMAGES[1, :1]  # grey
IMAGES[2] = IMAGES[2].round()  # pure colours, black and white
FACTORS = torch.tensor([0.0, 0.4, 0.9, 1.0, 1.3, 3.0])
TURNS = torch.tensor([-0.5, -0.1, 0.05, 0.0, 0.1, 0.5])


def one_by_one(function, amounts):
    return torch.stack([function(image, float(amount)) for image, amount in zip(IMAGES, amounts, strict=True)])


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_blends_equal_torchvision(name):
    expected = one_by_one(getattr(vision, f"adjust_{name}"), FACTORS)
    torch.testing.assert_close(getattr(augment, name)(IMAGES, FACTORS), expected, rtol=0, atol=1e-6)


def test_the_hue_equals_torchvision():
    torch.testing.assert_close(augment.hue(IMAGES, TURNS), one_by_one(vision.adjust_hue, TURNS), rtol=0, atol=1e-5)


def test_grey_equals_torchvision():
    expected = vision.rgb_to_grayscale(IMAGES)
    torch.testing.assert_close(augment.grey(IMAGES), expected, rtol=0, atol=1e-6)


def test_the_blur_equals_torchvision():
    deviations = torch.tensor([0.1, 0.5, 1.0, 1.5, 1.9, 2.0])
    expected = one_by_one(lambda image, deviation: vision.gaussian_blur(image, [13, 13], [deviation] * 2), deviations)
    torch.testing.assert_close(augment.blur(IMAGES, deviations, radius=6), expected, rtol=0, atol=1e-5)


def test_a_blur_wider_than_the_image_is_cut():
    small = IMAGES[:, :, :4, :4]
    assert torch.isfinite(augment.blur(small, torch.full((6,), 2.0), radius=6)).all()


def test_amounts_that_change_nothing_leave_the_image_as_it_is():
    ones, zeros = torch.ones(6), torch.zeros(6)
    for name in ("brightness", "contrast", "saturation"):
        assert torch.equal(getattr(augment, name)(IMAGES, ones), IMAGES)
    assert torch.equal(augment.blur(IMAGES, zeros, radius=6), IMAGES)
    torch.testing.assert_close(augment.hue(IMAGES, zeros), IMAGES, rtol=0, atol=1e-6)
