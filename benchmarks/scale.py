"""Shards: how fast embeddings are assigned, how local processes and Ray compare, and how fast a GPU embeds JPEG files.

    python benchmarks/scale.py --assign --rows 1000000 10000000 100000000    synthetic embeddings, 1,000 clusters
    python benchmarks/scale.py --engines                                     local with 1 and 2 processes, and Ray
    python benchmarks/scale.py --kills 20 --images 100000 --ray              killed at random moments: the same files
    python benchmarks/scale.py --embed --images 50000                        JPEG in tars, ViT-B/16 at 224 px, on a GPU
    python benchmarks/scale.py --sample 10000 20000 --embeddings FOLDER --labels FILE --truth FILE --classes 100
                                                                             accuracy on a sample and on all rows

`--assign` writes input shards, assigns them with `promptcal predict`, and deletes them, so that the disk holds few of
them at a time. Times are wall-clock and CPU time of the commands; start-up is that of a command with 1,000 rows. Memory
is the largest sum of the proportional set sizes of the command's processes.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from measuring import show, slope

CLASSES, WIDTH, SHARD_ROWS, SHARDS_AT_ONCE = 1000, 192, 500_000, 20
BACKBONE = "vit_tiny_patch4_32.promptcal"
_MEMORY_EVERY = 3.0  # seconds; reading the memory of large processes takes a part of a core


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "promptcal", *map(str, words)]


class Measured:
    """Wall-clock and CPU seconds of commands, and the largest memory of their processes."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.gigabytes = 0.0

    def run(self, words: list[str], cores: set[int] | None = None) -> None:
        """Run a command, if wanted on some of the cores only."""
        began = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        if cores is not None:
            os.sched_setaffinity(process.pid, cores)  # before Python has started any thread
        watching = threading.Thread(target=self._watch, args=(process,))
        watching.start()
        code = process.wait()
        watching.join()
        if code:
            raise SystemExit(f"exit code {code}: {' '.join(words)}")
        self.wall += time.perf_counter() - began

    def __str__(self) -> str:
        return f"{self.wall:.0f} s, {self.cpu:.0f} CPU s, {self.gigabytes:.2f} GB"

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        used: dict[int, float] = {}
        next_memory = 0.0
        while process.poll() is None:
            tree = _tree(process.pid)
            used |= {pid: _cpu(pid) or used.get(pid, 0.0) for pid in tree}
            if time.monotonic() >= next_memory:
                self.gigabytes = max(self.gigabytes, sum(map(_pss, tree)) / 1e9)
                next_memory = time.monotonic() + _MEMORY_EVERY
            time.sleep(0.2)
        self.cpu += sum(used.values())


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> set[int]:
    """A process and all processes that it started, by Linux's /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def centres() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(CLASSES, WIDTH)).astype(np.float32)


@cache
def base_rows(n: int) -> np.ndarray:
    generator = np.random.default_rng(1)
    return centres()[generator.integers(CLASSES, size=n)] + generator.normal(size=(n, WIDTH)).astype(np.float32)


def noisy_rows(number: int, n: int) -> np.ndarray:
    """Rows around the centres. Shards differ by a shift, because drawing all noise anew would take too long."""
    shift = np.random.default_rng(number).normal(size=WIDTH).astype(np.float32)
    return (base_rows(SHARD_ROWS)[:n] + 0.3 * shift).astype(np.float16)


def write_embeddings(path: Path, number: int, n: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    values = pa.array(noisy_rows(number, n).reshape(-1))
    ids = pa.array([f"{number}-{i}" for i in range(n)])
    table = pa.table({"id": ids, "embedding": pa.FixedSizeListArray.from_arrays(values, WIDTH)})
    parquet.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)


def fitted_run(folder: Path) -> Path:
    """A run on 50,000 rows; a tenth of the classes is known."""
    from promptcal import api

    rows = noisy_rows(10**6, 50_000)
    truth = np.random.default_rng(1).integers(CLASSES, size=SHARD_ROWS)[: len(rows)]  # as in `base_rows`
    labels = np.where((truth < CLASSES // 10) & (np.arange(len(rows)) % 2 == 0), truth, -1)
    api.cluster(
        features=rows,
        labels=labels,
        n_classes=CLASSES,
        output=folder / "run",
        report=False,
        overrides=("clustering.n_init=1", "clustering.max_iter=20", "clustering.readout=kmeans"),
    )
    return folder / "run"


def assign(given: argparse.Namespace, folder: Path) -> None:
    """Each size is a folder of shards; a few shards are written, assigned and deleted at a time."""
    run = given.run or fitted_run(folder)
    points, header = [], ["rows", "s", "CPU s", "s per million", "CPU s per million", "memory GB", "output GB"]
    startup = Measured()
    for n in [1000, *given.rows]:
        done, inputs, output = Measured(), folder / "inputs", folder / "output"
        sizes = [min(SHARD_ROWS, n - first) for first in range(0, n, SHARD_ROWS)]
        for first in range(0, len(sizes), SHARDS_AT_ONCE):
            inputs.mkdir()
            for i, size in enumerate(sizes[first : first + SHARDS_AT_ONCE], first):
                write_embeddings(inputs / f"{i:06d}.parquet", i, size)
            done.run(command("predict", run, inputs, "--output", output, "--workers", given.workers, "--quiet"))
            shutil.rmtree(inputs)
            rows = json.loads((output / "manifest.json").read_text())["rows"]
            assert rows == min(n, (first + SHARDS_AT_ONCE) * SHARD_ROWS)
            rounds = first // SHARDS_AT_ONCE + 1
            if n > 1000:
                wall, cpu = done.wall - rounds * startup.wall, done.cpu - rounds * startup.cpu
                size_gb = sum(file.stat().st_size for file in (output / "shards").glob("*.parquet")) / 1e9
                per_million = (f"{1e6 * wall / rows:.2f}", f"{1e6 * cpu / rows:.2f}")
                figures = (f"{done.gigabytes:.2f}", f"{size_gb:.2f}")
                points.append((rows, wall, cpu, (f"{rows:,}", f"{wall:.0f}", f"{cpu:.0f}", *per_million, *figures)))
                print(*points[-1][3], f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        shutil.rmtree(output)
        startup = done if n == 1000 else startup
    title = f"{WIDTH} numbers, {CLASSES} clusters, {given.workers} processes"
    show(title, header, [point[3] for point in points])
    print(f"without the start-up of a command: {startup.wall:.1f} s, {startup.cpu:.1f} CPU s")
    if len(points) > 1:
        sizes_, walls, cpus, _ = zip(*points, strict=True)
        print(f"log-log slope: wall {slope(sizes_, walls):.3f}, CPU {slope(sizes_, cpus):.3f}")


def write_demo_tars(folder: Path, images: int, of_a_tar: int = 500) -> None:
    """The demo's images, repeated under other ids."""
    from PIL import Image

    from promptcal.data import embedded_set

    encoded = []
    for image in embedded_set("train").images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        encoded.append(file.getvalue())
    write_tars(folder, images, of_a_tar, lambda i: encoded[i % len(encoded)], "png")


def write_tars(folder: Path, images: int, of_a_tar: int, content: Callable[[int], bytes], suffix: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, images, of_a_tar)):
        with tarfile.open(folder / f"{number:05d}.tar", "w") as tar:
            for i in range(first, min(images, first + of_a_tar)):
                data = content(i)
                member = tarfile.TarInfo(f"{i:09d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def engines(given: argparse.Namespace, folder: Path) -> None:
    """The same work by one process on one core and on all, by two processes, and by Ray with two.

    One process on two cores computes the network with two threads, so what two processes gain is seen against one core.
    """
    write_demo_tars(folder / "tars", given.images)
    write_demo_tars(folder / "few", 20, 10)
    one = ("--engine", "local", "--workers", 1)
    ways: dict[str, tuple[object, ...]] = {
        "local, 1 process on 1 core": one,
        "local, 1 process": one,
        f"local, {given.workers} processes": ("--engine", "local", "--workers", given.workers),
    }
    if given.ray:
        ways[f"ray, {given.workers} processes"] = ("--engine", "ray", "--workers", given.workers)
    rows: list[tuple[object, ...]] = []
    for repeat in range(given.repeats):
        for name, words in ways.items():
            times = []
            for source in ("few", "tars"):
                done = Measured()
                output = folder / f"out-{len(rows)}-{source}"
                embedding = command("embed", folder / source, "--backbone", BACKBONE, "--output", output, "--quiet")
                cores = {min(os.sched_getaffinity(0))} if name.endswith("on 1 core") else os.sched_getaffinity(0)
                done.run([*embedding, *map(str, words)], cores)
                times.append(done)
                shutil.rmtree(output)
            few, all_ = times
            n = given.images
            wall, cpu = all_.wall - few.wall, all_.cpu - few.cpu
            load = f"{os.getloadavg()[0]:.1f}"
            rows.append((name, repeat, all_.wall, few.wall, n / wall, 1000 * cpu / n, all_.gigabytes, load))
            print(rows[-1], file=sys.stderr, flush=True)
    header = ["engine", "repeat", "s", "of which start-up", "images/s", "CPU ms per image", "memory GB", "load"]
    rates = {name: float(np.median([row[4] for row in rows if row[0] == name])) for name in ways}
    show(f"{given.images:,} images of 32 px, the included backbone", header, rows)
    base, two = rates["local, 1 process on 1 core"], rates[f"local, {given.workers} processes"]
    print(f"medians: {two / base:.2f} times the images per second of one process on one core")
    if given.ray:
        print(f"Ray takes {100 * (two / rates[f'ray, {given.workers} processes'] - 1):.0f} % longer")


def kills(given: argparse.Namespace, folder: Path) -> None:
    """Kill the command at random moments and start it again, kill a worker of Ray, and compare the files."""
    write_demo_tars(folder / "tars", given.images)
    words = command("embed", folder / "tars", "--backbone", BACKBONE, "--workers", given.workers, "--quiet", "--output")
    subprocess.run([*words, str(folder / "whole")], check=True, stdout=subprocess.DEVNULL)
    whole = checked_manifest(folder / "whole")
    n_shards = len(whole["shards"])
    entries = (folder / "whole" / "entries").glob("*.json")
    a_shard = float(np.mean([json.loads(entry.read_text())["seconds"] for entry in entries]))
    chance, output = random.Random(0), folder / "killed"
    for number in range(1, given.kills + 1):
        before, left = _finished(output), given.kills - number + 1
        wanted = before + chance.randint(0, max(0, 2 * (n_shards - before) // (left + 1) - given.workers))
        most = max(wanted, n_shards - given.workers * left)  # so that shards are left for the other kills
        process = subprocess.Popen([*words, str(output)], start_new_session=True, stdout=subprocess.DEVNULL)
        while _finished(output) < wanted and process.poll() is None:
            time.sleep(0.01)
        until = time.monotonic() + chance.uniform(0, a_shard if wanted > before else 10)  # or while it starts
        while time.monotonic() < until and _finished(output) < most and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is not None:
            raise SystemExit(f"ended before kill {number} with exit code {process.poll()}; give more images")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"kill {number}: {_finished(output)} of {n_shards} shards finished", file=sys.stderr, flush=True)
    subprocess.run([*words, str(output)], check=True, stdout=subprocess.DEVNULL)
    assert whole == checked_manifest(output), "the files differ"
    print(f"{given.kills} kills, {whole['rows']:,} rows in {n_shards} shards: the same files")
    if given.ray:
        _kill_ray_worker([*words, str(folder / "ray"), "--engine", "ray"], folder / "ray", n_shards // 4)
        assert whole == checked_manifest(folder / "ray"), "the files differ"
        print(f"a worker of Ray killed, {whole['rows']:,} rows in {n_shards} shards: the same files")


def _kill_ray_worker(words: list[str], output: Path, after: int) -> None:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while _finished(output) < after:
        assert process.poll() is None, "finished before the kill"
        time.sleep(0.05)
    worker = next(pid for pid in _tree(process.pid) if "MapWorker" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(worker, signal.SIGKILL)
    assert process.wait() == 0


def checked_manifest(output: Path) -> dict[str, Any]:
    """The manifest, after its checksums and numbers of rows were compared with the files, and all ids differ."""
    from pyarrow import parquet

    from promptcal.runtime.files import file_digest

    manifest: dict[str, Any] = json.loads((output / "manifest.json").read_text())
    ids: set[str] = set()
    for shard in manifest["shards"]:
        file = output / "shards" / f"{shard['name']}.parquet"
        assert file_digest(file) == shard["sha256"]
        ids.update(parquet.read_table(file, columns=["id"])["id"].to_pylist())
    assert len(ids) == manifest["rows"]
    assert len(list((output / "shards").iterdir())) == len(manifest["shards"])
    return manifest


def _finished(folder: Path) -> int:
    return len(list((folder / "entries").glob("*.json")))


def photographs(n: int, size: tuple[int, int]) -> Iterator[bytes]:
    """JPEG files of about the size of ImageNet's: smooth shapes and noise."""
    from PIL import Image, ImageFilter

    generator = np.random.default_rng(0)
    for _ in range(n):
        small = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        image = small.resize(size, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))
        noise = generator.normal(0, 8, (size[1], size[0], 3))
        file = io.BytesIO()
        Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        yield file.getvalue()


def embed(given: argparse.Namespace, folder: Path) -> None:
    """Images per second from JPEG files in tars to embeddings, and what limits them: decoding alone, network alone.

    Two processes on one GPU have half of the cores each; one computes while the other one begins or ends a shard.
    """
    import torch

    from promptcal.runtime.threads import available_cores
    from promptcal.shards.decoders import CropSize, decoders
    from promptcal.shards.manifest import InputShard
    from promptcal.shards.shard_images import image_chunks

    encoded = list(photographs(200, (500, 375)))
    mean = sum(map(len, encoded)) / len(encoded) / 1000
    few, of_a_tar = given.images // 10, max(1, min(5000, given.images // 20))
    for name, n in (("few", few), ("tars", given.images)):
        write_tars(folder / name, n, of_a_tar, lambda i: encoded[i % len(encoded)], "jpg")
    options = ("--backbone", given.backbone, "--set", "model.pretrained=false", "--device", given.device, "--quiet")
    rows = []
    for workers in (1, 2):
        times = {}
        for source in ("few", "tars"):
            output, began = folder / f"out-{source}-{workers}", time.perf_counter()
            words = command("embed", folder / source, "--output", output, "--workers", workers, *options)
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            times[source] = time.perf_counter() - began
        processes = f"{workers} process{'es' if workers > 1 else ''}"
        rows.append((f"whole command, {processes}", given.images / times["tars"]))
        rows.append(("the same without start-up", (given.images - few) / (times["tars"] - times["few"])))
    cores = available_cores()
    pool = decoders(cores)
    began, n = time.perf_counter(), 0
    for tar in sorted((folder / "tars").glob("*.tar"))[:4]:
        shard = InputShard(name=tar.stem, kind="tar", location=str(tar))
        n += sum(len(chunk.ids) for chunk in pool.map(image_chunks(shard, 16), CropSize(256, 224)))
    decoding, network = n / (time.perf_counter() - began), _network_rate(given)
    rows += [(f"decoding alone, {cores} cores", decoding), ("network alone", network)]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    title = f"{given.images:,} JPEG of 500 x 375 ({mean:.0f} kB), {given.backbone}, {device}"
    show(title, ["what", "images/s"], [(what, f"{rate:,.1f}") for what, rate in rows])
    best = max(rows[1][1], rows[3][1])
    limit, rate = ("decoding", decoding) if decoding < network else ("the network", network)
    print(f"limited by {limit}; the whole reaches {100 * best / rate:.0f} % of it")


def _network_rate(given: argparse.Namespace) -> float:
    import torch

    from promptcal.methods import load_config
    from promptcal.pipeline.class_estimate import pretrained_vit
    from promptcal.shards.decoders import DecodedChunk
    from promptcal.shards.embedder import Embedder

    values = {"n_classes": 2, "device": given.device}
    overrides = [f"model.backbone={given.backbone}", "model.pretrained=false"]
    vit, resize = pretrained_vit(load_config(values=values, overrides=overrides))
    embedder = Embedder(vit, resize)
    crops = torch.randint(0, 256, (256, embedder.size.crop, embedder.size.crop, 3), dtype=torch.uint8)
    names = ["x"] * 256

    def batches(n: int) -> Iterator[DecodedChunk]:
        return (DecodedChunk(names, names, crops, []) for _ in range(n))

    n = 64 if embedder.device.type == "cuda" else 2
    list(embedder.blocks(batches(2), []))
    began = time.perf_counter()
    sum(len(block.ids) for block in embedder.blocks(batches(n), []))
    return 256 * n / (time.perf_counter() - began)


def sampled(given: argparse.Namespace, folder: Path) -> None:
    """Accuracy on all unlabelled rows if `cluster` is fitted on a sample of them, and on all of them."""
    import pyarrow.dataset as ds

    from promptcal import api
    from promptcal.data.labels import label_pairs
    from promptcal.metrics import discovery_accuracy
    from promptcal.shards.find_shards import expand
    from promptcal.shards.sampled import row_counts

    truth, labels = (dict(label_pairs(file)) for file in (given.truth, given.labels))
    known = sorted({label for label in labels.values() if label is not None})
    n = sum(row_counts(expand([str(given.embeddings)], embeddings=True)[0]))
    rows: list[tuple[object, ...]] = []
    for seed in range(given.repeats):
        for size in [*given.sample, n]:
            output, used = folder / f"{size}-{seed}", time.process_time()
            api.cluster(
                features=given.embeddings,
                labels=given.labels,
                n_classes=given.classes,
                seed=seed,
                sample=size,
                output=output,
                report=False,
                progress=False,
            )
            used = time.process_time() - used
            found = ds.dataset(output / "assignments" / "shards").to_table(columns=["id", "cluster"])
            cluster = dict(zip(found["id"].to_pylist(), found["cluster"].to_pylist(), strict=True))
            scored = [name for name in truth if labels.get(name) is None]
            clusters = np.array([cluster[name] for name in scored])
            accuracy = discovery_accuracy([str(truth[name]) for name in scored], clusters, known)
            parts = (f"{100 * part:.2f}" for part in (accuracy.all, accuracy.known, accuracy.new))
            rows.append((seed, f"{size:,}", *parts, f"{used:.0f}"))
            print(*rows[-1], file=sys.stderr, flush=True)
    show(f"{n:,} rows", ["seed", "unlabelled rows of the sample", "All", "Known", "New", "CPU s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assign", action="store_true")
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("--embed", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--sample", type=int, nargs="+", help="rows of a sample")
    parser.add_argument("--embeddings", type=Path, help="with --sample: an output of `promptcal embed`")
    parser.add_argument("--labels", type=Path, help="with --sample")
    parser.add_argument("--truth", type=Path, help="with --sample")
    parser.add_argument("--classes", type=int, help="with --sample: number of categories")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ray", action="store_true", help="with --engines: Ray, too")
    parser.add_argument("--run", type=Path, help="with --assign: a run on features of 192 numbers")
    parser.add_argument("--backbone", default="vit_base_patch16_224.dino")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", type=Path, help="for the files; by default a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        works = {assign: given.assign, engines: given.engines, kills: given.kills, embed: given.embed}
        for work, wanted in {**works, sampled: given.sample}.items():
            if wanted:
                work(given, Path(name))


if __name__ == "__main__":
    main()
