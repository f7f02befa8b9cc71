"""Views of stored images: random crop and flip to train on, the centre crop to look at."""

import torch
from torch import Tensor

from promptcal.data.store import ImageStore


class View:
    """Crops of ``size`` pixels from a store, normalised with the backbone's mean and standard deviation."""

    def __init__(
        self, store: ImageStore, size: int, mean: tuple[float, float, float], std: tuple[float, float, float]
    ) -> None:
        self.store = store
        self.size = size
        self.mean = torch.tensor(mean, device=store.device).view(1, 3, 1, 1)
        self.std = torch.tensor(std, device=store.device).view(1, 3, 1, 1)

    def random(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """One random crop, mirrored half of the time, of each image; ``generator`` is the host's."""
        draws = torch.rand(3, len(index), generator=generator).to(self.store.device)
        spare_rows, spare_columns = self._spare(index)
        top = (draws[0] * (spare_rows + 1)).long().clamp(max=spare_rows)
        left = (draws[1] * (spare_columns + 1)).long().clamp(max=spare_columns)
        return self._normalise(self.store.crop(index, top, left, self.size, draws[2] < 0.5))

    def centre(self, index: Tensor) -> Tensor:
        """The centre crop of each image (torchvision's rounding)."""
        spare_rows, spare_columns = self._spare(index)
        # torchvision rounds half to even: int(round(spare / 2))
        top, left = (torch.round(spare / 2.0).long() for spare in (spare_rows, spare_columns))
        still = torch.zeros(len(index), dtype=torch.bool, device=self.store.device)
        return self._normalise(self.store.crop(index, top, left, self.size, still))

    def _spare(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.store.heights[index] - self.size, self.store.widths[index] - self.size

    def _normalise(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255.0 - self.mean) / self.std
