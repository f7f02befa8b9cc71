"""Time of training steps and extraction by number of processes, with the same total batch.

    python benchmarks/scaling.py                     1 and 2 processes
    python benchmarks/scaling.py --processes 1 2 4 8 as many as there are GPUs

On a GPU: ViT-B/16, 224 px, 128 images x 2 views, memory 4096, not compiled. On a CPU: the demo's step, one thread
per process, so use at most as many processes as cores. The numbers of processes alternate, each in a few launches of
torchrun, and every time is the median over all launches; ratios use times of the same run. CPU time is that of rank 0:
its ratio shows how the work is divided, even on a busy machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measuring import machine, median_ms, once_s, show
from step import data_of, fill_memory, network_of, stepper

from promptcal.methods import load_config
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.models import ProjectionNetwork
from promptcal.runtime import distributed
from promptcal.runtime.device import choose_device, choose_dtype, device_context
from promptcal.runtime.distributed import Group
from promptcal.training.embedding import embed


def config_of(device: torch.device) -> Any:
    if device.type == "cuda":
        return load_config(values={"n_classes": 200}, overrides=["affinity.k=5"])
    return load_config(preset="quick", values={"n_classes": 10})


def measured(device: torch.device, repeats: int) -> dict[str, float]:
    """Milliseconds of each step, and of the extraction of an image, in this process."""
    group = distributed.group()
    config = config_of(device)
    times = {}
    for name in ("warmup", "affinity"):
        network = network_of(config, device, compiled=False)
        network.join_process_group(group)
        data = replace(data_of(network, config.data.batch_size, device, 512), part=group.part(config.data.batch_size))
        stage = WarmupStage("warmup", network, config.loss) if name == "warmup" else AffinityStage(network, config)
        step = stepper(stage, data, config)
        if name == "affinity":
            fill_memory(step, config)
        communication, begun = time_communication(group), time.process_time()
        times[f"{name} step"] = median_ms(step, device, repeats=repeats)
        times[f"{name} step: CPU"] = 1000 * (time.process_time() - begun) / (repeats + 3)
        times[f"{name} step: communication"] = 1000 * sum(communication) / (repeats + 3)
    every = torch.arange(len(data.labels)).repeat(2)
    embed(network, data.view, every[:64], group=group)
    begun = time.process_time()
    seconds = once_s(lambda: embed(network, data.view, every, group=group), device)
    times["extraction, an image"] = 1000 * seconds / len(every)
    times["extraction, an image: CPU"] = 1000 * (time.process_time() - begun) / len(every)
    return times


def time_communication(group: Group) -> list[float]:
    """Seconds of each collective operation from now on; on a GPU, of the host only."""
    seconds: list[float] = []

    def timed(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            try:
                return operation(*given, **more)
            finally:
                seconds.append(time.perf_counter() - begun)

        return call

    if group.world > 1:
        kind = type(group)
        group.all_gather, group.all_reduce_sum = (  # type: ignore[method-assign]
            timed(getattr(kind, name).__get__(group)) for name in ("all_gather", "all_reduce_sum")
        )
    return seconds


def bytes_in_a_step(network: ProjectionNetwork, batch: int, world: int) -> dict[str, int]:
    """Bytes that a process sends in an affinity step, by the formulas of results/measurements.md."""
    embeddings = 2 * batch // world * network.vit.dim * len(network.tokens) * 4
    trained = 4 * sum(p.numel() for p in network.vit.parameters() if p.requires_grad)
    return {"gathered": 2 * (world - 1) * embeddings, "summed": 2 * (world - 1) * trained // world}


@distributed.distributed_entry_point
def worker(output: Path, repeats: int) -> None:
    device = choose_device("auto")
    with device_context(device, choose_dtype("auto", device)):
        times = measured(device, repeats)
    if distributed.group().is_first:
        output.write_text(json.dumps(times))


def launched(world: int, repeats: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times.json"
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        own = [__file__, "--worker", str(output), "--repeats", str(repeats)]
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        subprocess.run([sys.executable, *(torchrun if world > 1 else []), *own], check=True, env=environment)
        return json.loads(output.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=10, help="steps timed in a launch")
    parser.add_argument("--rounds", type=int, default=3, help="launches for each number of processes")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given.worker, given.repeats)
        return
    found: dict[int, list[dict[str, float]]] = {world: [] for world in given.processes}
    for round_number in range(given.rounds):
        for world in given.processes:
            print(f"round {round_number + 1} of {given.rounds}: {world} processes", file=sys.stderr)
            found[world].append(launched(world, given.repeats))
    medians = {
        world: {what: statistics.median(times[what] for times in rounds) for what in rounds[0]}
        for world, rounds in found.items()
    }
    device = choose_device("auto")
    config = config_of(device)
    network = network_of(config, torch.device("cpu"), compiled=False)
    base = min(medians)
    rows: list[tuple[Any, ...]] = []
    for what in (name for name in medians[base] if ":" not in name):
        for world, times in medians.items():
            clock, processor = (medians[base][w] / times[w] for w in (what, f"{what}: CPU"))
            rows.append((what, world, times[what], clock, times[f"{what}: CPU"], processor, processor * base / world))
    header: tuple[str, ...] = ("what", "processes", "ms", "speed-up", "CPU ms", "CPU ratio", "efficiency")
    show(f"Growth with processes, {machine(device)}, a batch of {config.data.batch_size} in all", header, rows)
    rows = [
        (what.split(":")[0], world, times[what], times[what] / times[what.split(":")[0]])
        + tuple(bytes_in_a_step(network, config.data.batch_size, world).values())
        for what in medians[base]
        if what.startswith("affinity") and "communication" in what
        for world, times in medians.items()
    ]
    header = ("what", "processes", "communication ms", "share", "bytes gathered", "bytes summed")
    show("Communication between processes", header, rows)


if __name__ == "__main__":
    main()
