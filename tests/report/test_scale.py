"""A report of 10,000 images, and of 100 million in shards: small enough to send, quick enough to use."""

import time

import numpy as np
import pytest
from PIL import Image, ImageFilter

from promptcal import make_report
from promptcal.data import ImageSet
from promptcal.data.sources import ImageSource
from promptcal.discovery.calibration import Calibration
from promptcal.methods import load_config
from promptcal.report.selection import select_images
from promptcal.report.thumbnails import make_thumbnails
from promptcal.run import Assignments, RunDirectory, RunInfo, RunResults
from promptcal.run.assignments import category_names
from promptcal.runtime.files import file_digest, write_csv
from promptcal.shards.manifest import ManifestShard, ShardManifest
from promptcal.shards.shard_folder import ShardFolder
from promptcal.shards.totals import BINS, CategoryTotals, ShardTotals

N, CLASSES, KNOWN, DIM = 10_000, 100, 60, 384


class Scenes(ImageSource):
    """Pictures with as much detail as photographs: random shapes, edges and grain, each different."""

    def open(self, index):
        random = np.random.default_rng(index)
        coarse = Image.fromarray(random.integers(0, 255, (12, 12, 3), dtype=np.uint8)).resize((256, 256), Image.BICUBIC)
        shapes = Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).resize((256, 256), Image.NEAREST)
        mixed = Image.blend(coarse, shapes.filter(ImageFilter.GaussianBlur(1.5)), 0.35)
        grain = random.normal(0, 12, (256, 256, 3))
        return Image.fromarray((np.asarray(mixed) + grain).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def large_run(tmp_path_factory):
    """A run directory as a fit of 10,000 images in 100 categories would leave it, but for the network."""
    directory = RunDirectory(tmp_path_factory.mktemp("large") / "run")
    directory.path.mkdir()
    random = np.random.default_rng(0)
    truth = random.integers(0, CLASSES, N)
    centres = random.normal(size=(CLASSES, DIM))
    points = centres[truth] + 1.2 * random.normal(size=(N, DIM))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    clusters = np.where(random.random(N) < 0.15, random.integers(0, CLASSES, N), truth)
    classes = [f"a class with a rather long name {i:03d}" for i in range(KNOWN)]
    labelled = (truth < KNOWN) & (clusters == truth) & (random.random(N) < 0.5)
    paths = [f"some folder/another folder/{i % 97:02d}/photograph number {i:06d}.jpg" for i in range(N)]
    names = category_names(classes, CLASSES)
    known = [True] * KNOWN + [False] * (CLASSES - KNOWN)
    second, no_share = np.full(N, -1), np.zeros(N)
    assignments = Assignments(paths, clusters, random.random(N), names, known, labelled, second, no_share)
    np.save(directory.embeddings_file, points.astype(np.float32))
    directory.assignments_file.write_text(assignments.to_csv(), encoding="utf-8")
    config = load_config(values={"n_classes": CLASSES})
    directory.config_file.write_text(config.to_yaml(), encoding="utf-8")
    RunResults(method="promptcal", seconds=5000.0).write(directory.results_file)
    Calibration(temperature=0.1).write(directory.calibration_file)
    write_csv(directory.truth_file, ["path", "label"], [(p, f"true {t}") for p, t in zip(paths, truth, strict=True)])
    make_thumbnails(ImageSet(paths, Scenes()), select_images(assignments)).write(directory.thumbnails_folder)
    RunInfo(status="finished", known_classes=classes, categories=names, resize=256).write(directory.info_file)
    return directory


@pytest.fixture(scope="module")
def hundred_million(tmp_path_factory, large_run):
    """A folder as `predict` and a report leave it: 10,000 shards, whose numbers are counted already."""
    folder = ShardFolder(tmp_path_factory.mktemp("predictions"))
    work = {"output": "assignments"}
    shard = {"input": "a.tar", "rows": 10_000, "unreadable": 0, "bytes": 1, "sha256": "0" * 64}
    shards = [ManifestShard(name=f"{i:06d}", **shard) for i in range(10_000)]
    manifest = ShardManifest(work=work, source=["a"], versions={}, rows=10**8, unreadable=17, shards=shards)
    manifest.write(folder.manifest_file)
    categories = [
        CategoryTotals(name=name, images=950_000, none=50_000, confidence=0.9) for name in large_run.info().categories
    ]
    ShardTotals(
        manifest=file_digest(folder.manifest_file),
        images=10**8,
        unreadable=17,
        none=5_000_000,
        histogram=[4_750_000] * BINS,
        categories=categories,
    ).write(folder.totals_file)
    return folder.path


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_images_stay_small_and_quick(large_run, hundred_million, browser):
    started = time.monotonic()
    made = make_report(run=large_run.path, shards=hundred_million, progress=False)
    print(f"\nwritten in {time.monotonic() - started:.0f} s, {made.n_bytes / 1e6:.1f} MB")
    assert made.n_shown == N
    assert 15e6 < made.n_bytes <= 40e6
    browser.get(made.path.as_uri())
    ready = float(browser.execute_script("return document.documentElement.dataset.ready")) / 1000
    times = {}
    for tab in ("clusters", "map", "confusion", "neighbours", "cluster-70", "totals"):
        times[tab] = browser.execute_async_script(
            """const [tab, done] = arguments; const start = performance.now(); location.hash = "#" + tab;
               addEventListener("hashchange", () => requestAnimationFrame(() => requestAnimationFrame(
                 () => done((performance.now() - start) / 1000))), { once: true });""",
            tab,
        )
    assert "100,000,000" in browser.find_element("tag name", "body").text
    search = browser.execute_async_script(
        """const done = arguments[0]; location.hash = "#clusters";
           setTimeout(() => { const input = document.getElementById("search"); const start = performance.now();
             input.value = "number 00123"; input.dispatchEvent(new Event("input"));
             requestAnimationFrame(() => done((performance.now() - start) / 1000)); }, 800);"""
    )
    print(f"interactive after {ready:.2f} s; seconds: {times}; search {search:.2f}")
    assert ready < 2
    assert max(times.values()) < 3
    assert search < 1.5
    assert [entry["message"] for entry in browser.get_log("browser")] == []
