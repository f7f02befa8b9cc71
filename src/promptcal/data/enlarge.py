"""PIL's bicubic enlargement as two matrix products, so that small images can be stored small and cropped on the device.

torch's interpolate differs from PIL in 19 % of the pixels (float) or 0.01-0.4 % (uint8, up to 2; CPU only), this code
in under 0.05 % (by 1). 256 crops of 224 px from 32 px on one core: 0.37 s; interpolate 0.60 s (float), 0.13 s (uint8).
"""

import math

import torch
from torch import Tensor


def enlarging_matrix(size: int, new_size: int) -> Tensor:
    """new_size x size: the weight of each old pixel in each new pixel (PIL's bicubic, a = -0.5, no reduction)."""
    if new_size < size:
        raise ValueError(f"{size} pixels cannot be enlarged to {new_size}")
    matrix = torch.zeros(new_size, size, dtype=torch.float64)
    for new in range(new_size):
        centre = (new + 0.5) * size / new_size
        first, last = max(0, int(centre - 2 + 0.5)), min(size, int(centre + 2 + 0.5))
        weights = [_cubic(old - centre + 0.5) for old in range(first, last)]
        matrix[new, first:last] = torch.tensor(weights, dtype=torch.float64) / math.fsum(weights)
    return matrix.float()


def _cubic(x: float) -> float:
    x = abs(x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0


def enlarged_crops(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """uint8 n x 3 x S x S from uint8 n x 3 x h x w and each crop's rows (n x S x h) and columns (n x S x w).

    Columns first, rounded, then rows, rounded (halves up): PIL's order and its 8-bit intermediate.
    """
    n, _, height, width = images.shape
    across = images.float().reshape(n, 3 * height, width) @ columns.transpose(1, 2)
    across = across.add_(0.5).floor_().clamp_(0, 255).view(n, 3, height, -1)
    return (rows.unsqueeze(1) @ across).add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)
