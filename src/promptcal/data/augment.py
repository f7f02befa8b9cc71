"""Changes of colours and sharpness, each image by its own amount, on any device.

Images are n x 3 x height x width with values 0..1, amounts are n numbers. The results are those of torchvision's
functions of the same purpose. To change only some images, give the others an amount that changes nothing: selecting
rows would make a GPU wait.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """0 is black, 1 the image itself, more is brighter."""
    return _blend(images, torch.zeros_like(images), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """0 is the mean grey of the image, 1 the image itself."""
    return _blend(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """0 is the image in grey, 1 the image itself."""
    return _blend(images, grey(images), factor)


def grey(images: Tensor) -> Tensor:
    """The luminance, n x 1 x height x width."""
    red, green, blue = images.split(1, dim=1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def hue(images: Tensor, fraction: Tensor) -> Tensor:
    """Rotate the hue by a fraction of the colour circle; 0 and 1 change nothing but rounding."""
    red, green, blue = images.unbind(dim=1)
    value, lowest = images.amax(dim=1), images.amin(dim=1)
    chroma = value - lowest
    safe = torch.where(chroma > 0, chroma, 1.0)
    # the hue in sixths of the circle; 0 for grey pixels
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = sixths + 6 * fraction.view(-1, 1, 1)
    channels = []
    for offset in (5, 3, 1):  # red, green, blue
        shifted = (sixths + offset) % 6
        channels.append(value - chroma * torch.minimum(shifted, 4 - shifted).clamp(0, 1))
    return torch.stack(channels, dim=1)


def blur(images: Tensor, deviation: Tensor, radius: int) -> Tensor:
    """Gaussian blur with a standard deviation in pixels, over ``2 radius + 1`` pixels, reflected at the borders."""
    radius = min(radius, images.shape[-1] - 1, images.shape[-2] - 1)
    distance = torch.arange(-radius, radius + 1, device=images.device)
    weights = torch.exp(-0.5 * (distance / deviation.clamp(min=1e-3).unsqueeze(1)) ** 2)
    weights = weights / weights.sum(dim=1, keepdim=True)
    padded = F.pad(images, (radius, radius, radius, radius), mode="reflect")
    return _filtered(_filtered(padded, weights, -2), weights, -1)


def _filtered(images: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Weighted sum of neighbours along one dimension, with each image's own weights."""
    length = images.shape[dim] - weights.shape[1] + 1
    total = torch.zeros_like(images.narrow(dim, 0, length))
    for start, weight in enumerate(weights.T):
        total += weight.view(-1, 1, 1, 1) * images.narrow(dim, start, length)
    return total


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor.view(-1, 1, 1, 1)
    return (factor * images + (1 - factor) * other).clamp(0, 1)
