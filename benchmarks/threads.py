"""k-means and a training step on a busy machine: spinning threads, sleeping threads, and one thread.

    python benchmarks/threads.py [--load N]

Starts N processes of other work (by default one per core), then measures each setting in a process of its own, because
the wait policy is read when PyTorch is imported. Prints seconds, and the ratio to the package's own setting.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time

SETTINGS = {  # environment, threads, and whether k-means may choose one thread
    "spinning threads": ("active", 0, False),
    "sleeping threads": ("passive", 0, False),
    "one thread": ("passive", 1, False),
    "as the command line": ("passive", 0, True),
}


def keep_a_core_busy() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # ends with the benchmark, also if that is killed
        sum(range(1_000_000))


def measure(threads: int, chooses: bool) -> None:
    """Print the seconds of 20 starts of k-means and of a training step."""
    import numpy as np
    import torch

    from promptcal.discovery import SemiSupervisedKMeans
    from promptcal.models import EMBEDDED_BACKBONE, PromptedViT
    from promptcal.runtime import threads as threads_module

    torch.set_num_threads(threads or threads_module.available_cores())
    if not chooses:
        threads_module.SMALL = 0
    generator = np.random.default_rng(0)
    points = generator.normal(size=(20, 192))[generator.integers(0, 20, 1500)] + generator.normal(size=(1500, 192))
    SemiSupervisedKMeans(20, n_init=2, random_state=0).fit(points)
    begun = time.perf_counter()
    SemiSupervisedKMeans(20, n_init=20, random_state=0).fit(points)
    clustered = time.perf_counter() - begun
    vit = PromptedViT(EMBEDDED_BACKBONE, prompts=5, train_blocks=1)
    views = torch.randn(32, 3, 32, 32)
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        vit(views).cls.square().sum().backward()
        times.append(time.perf_counter() - begun)
    print(clustered, min(times[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="processes of other work")
    parser.add_argument("--measure", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], bool(options.measure[1]))
        return
    others = [multiprocessing.Process(target=keep_a_core_busy, daemon=True) for _ in range(options.load)]
    for other in others:
        other.start()
    found: dict[str, list[float]] = {}
    for name, (policy, threads, chooses) in SETTINGS.items():
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        command = [sys.executable, __file__, "--measure", str(threads), str(int(chooses))]
        made = subprocess.run(
            command, env={**environment, "OMP_WAIT_POLICY": policy}, check=True, capture_output=True, text=True
        )
        found[name] = [float(word) for word in made.stdout.split()]
    for other in others:
        other.terminate()
    ours = found["as the command line"]
    print(f"{options.load} processes of other work, load average {os.getloadavg()[0]:.1f}")
    for name, (kmeans, step) in found.items():
        print(
            f"{name:20s}  20 k-means starts {kmeans:6.2f} s ({kmeans / ours[0]:5.1f} x)   "
            f"training step {step:5.2f} s ({step / ours[1]:4.1f} x)"
        )


if __name__ == "__main__":
    main()
