"""Images per second into the training step: a torchvision DataLoader against promptcal's store.

    python benchmarks/loading.py IMAGES [--device cuda] [--images 1024]

IMAGES is a folder of images, or a .tar archive of them. Each image gives two random 224-px views, as in training. The
output has one row each for (a) a DataLoader with the same torchvision transforms on all cores, (b) the store, decoding
included, and (c) the store after decoding, with the ratio to (a); and the time of one batch of 256 views.
"""

import argparse
import os
import statistics
import tarfile
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from promptcal.data import ImageSet, View
from promptcal.data.store import decode

MEAN, STD, BATCH = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 128


class TwoViews(Dataset):
    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.transform = transforms.Compose(
            [
                transforms.Resize(256, transforms.InterpolationMode.BICUBIC),
                transforms.RandomCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = Image.open(self.files[i]).convert("RGB")
        return self.transform(image), self.transform(image)


def loader_rate(files: list[Path], device: str) -> float:
    """Images per second through a DataLoader after its workers have started and the prefetched batches are used."""
    workers = os.cpu_count() or 1
    n_batches = max(4 * workers, 8)
    sampler = torch.utils.data.RandomSampler(files, replacement=True, num_samples=(n_batches + 2 * workers) * BATCH)
    loader = iter(DataLoader(TwoViews(files), BATCH, sampler=sampler, num_workers=workers))
    for _ in range(2 * workers):  # prefetched while the workers start
        next(loader)
    started, n = time.perf_counter(), 0
    for views in loader:
        n += len(torch.cat(views).to(device)) // 2
    return n / (time.perf_counter() - started)


def batch_seconds(view: View, n: int, repeats: int = 30) -> float:
    """Median time of computing both views of a batch."""
    generator, times = torch.Generator().manual_seed(0), []
    for _ in range(repeats + 3):
        index = torch.randint(n, (BATCH,), generator=generator).repeat(2)
        _wait(view.device)
        started = time.perf_counter()
        view.random(index, generator)
        _wait(view.device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[3:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", dest="n", type=int, default=1024, help="how many images to use")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.images
        if folder.is_file():
            with tarfile.open(folder) as archive:
                archive.extractall(temporary, filter="data")
            folder = Path(temporary)
        names = ImageSet.of(folder).names
        files = [folder / name for name in names[:: max(1, len(names) // arguments.n)]][: arguments.n]

        rate_a = loader_rate(files, arguments.device)
        started = time.perf_counter()
        store, _, _ = decode(ImageSet.of(files), 256)
        view = View(store.placed(torch.device(arguments.device)), 224, MEAN, STD, device=arguments.device, reuse=True)
        cold = len(files) / (time.perf_counter() - started)
        seconds = batch_seconds(view, len(files))

    print(f"{len(files)} images, {os.cpu_count()} cores, views made on {arguments.device}")
    print(f"{'':34}{'images/s':>10}{'ratio':>8}")
    print(f"{'(a) torchvision DataLoader':34}{rate_a:10.0f}{1:8.1f}")
    print(f"{'(b) store, cold (decode once)':34}{cold:10.0f}{cold / rate_a:8.1f}")
    print(f"{'(c) store, warm':34}{BATCH / seconds:10.0f}{BATCH / seconds / rate_a:8.1f}")
    print(f"one batch of {2 * BATCH} views: {1000 * seconds:.2f} ms")


if __name__ == "__main__":
    main()
