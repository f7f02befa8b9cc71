"""The labelling app with many images: time until it can be used, frames while scrolling, labelling, memory.

Makes a run of tiny images (links to a few files) with random embeddings, serves it in a process of its own, uses it in
headless Chromium, and compares what is measured with the targets. Other programs disturb times, so CPU times and the
load are printed, too. Needs promptcal[app], selenium, chromium and chromedriver.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from promptcal import fit
from promptcal.app.label_state import LabelState
from promptcal.run.assignments import Assignments
from promptcal.run.directory import RunDirectory
from promptcal.runtime import files


def make_run(folder: Path, n_images: int, n_categories: int, dim: int) -> Path:
    """A finished run: a real fit of a few images, whose results are then replaced by those of many images."""
    random = np.random.default_rng(0)
    photos = folder / "photos"
    photos.mkdir()
    for i in range(40):
        noise = Image.fromarray(random.integers(0, 255, (6, 8, 3), dtype=np.uint8))
        noise.resize((640, 480), Image.Resampling.BICUBIC).save(photos / f"{i:06d}.jpg")
    run = fit(
        images=photos, labels={f"{i:06d}.jpg": f"class {i % 2}" for i in range(20)}, n_classes=4, progress=False,
        method="semi-supervised-kmeans", output=folder / "run", report=False,
        overrides=("model.backbone=vit_tiny_patch4_32.promptcal", "model.image_size=8", "clustering.n_init=2"),
    )  # fmt: skip
    for i in range(40, n_images):
        os.link(photos / f"{i % 40:06d}.jpg", photos / f"{i:06d}.jpg")
    directory = RunDirectory(run.path)
    names = ["class 0", "class 1", *(f"new-{i + 1}" for i in range(n_categories - 2))]
    confidence = random.uniform(0.3, 1, n_images)
    clusters, second = random.integers(0, n_categories, (2, n_images))
    found = Assignments(
        [f"{i:06d}.jpg" for i in range(n_images)], clusters, confidence, names,
        [name.startswith("class") for name in names], np.arange(n_images) < 0, second,
        (1 - confidence) * random.uniform(0, 1, n_images), stability=random.uniform(0, 1, n_images),
    )  # fmt: skip
    assert len(LabelState.of(found)) == n_images
    files.write_text(directory.assignments_file, found.to_csv())
    vectors = random.normal(size=(n_images, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with directory.embeddings_file.open("wb") as file:
        np.save(file, vectors)
    digests = {f.name: files.file_digest(f) for f in (directory.assignments_file, directory.embeddings_file)}
    directory.update_info(categories=names, n_images=n_images, n_classes=n_categories, sha256=digests)
    return run.path


def open_browser() -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    traced = {"traceCategories": "toplevel,devtools.timeline"}
    options.add_experimental_option("perfLoggingPrefs", {**traced, "enableNetwork": False, "enablePage": False})
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    browser.set_window_size(1300, 900)
    return browser


SCROLL = """
const done = arguments[arguments.length - 1];
const grid = document.querySelector(".grid");
const frames = [];
let last = performance.now(), n = 0;
const tasks = [];
const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration)));
observer.observe({ entryTypes: ["longtask"] });
const step = (now) => {
  frames.push(now - last);
  last = now;
  grid.scrollTop += n < 150 ? 60 : n < 250 ? 1500 : grid.scrollHeight / 120;
  if (++n < 350) requestAnimationFrame(step);
  else setTimeout(() => done({ frames: frames.slice(2), tasks }), 300);
};
requestAnimationFrame(step);
"""
LABEL = """
const [from, done] = arguments;
import("/assets/labelling.js").then(async ({ grid, label, selection }) => {
  selection.set(grid.list().slice(from, from + 1000));
  await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
  const start = performance.now();
  await label.as(1);
  requestAnimationFrame(() => done(performance.now() - start));
});
"""
COMPUTE = """
const done = arguments[arguments.length - 1];
const seconds = {};
const time = async (name, work) => {
  const start = performance.now();
  await work();
  seconds[name] = (performance.now() - start) / 1000;
};
import("/assets/server.js").then(async ({ get, post }) => {
  const images = Array.from({ length: 20000 }, (_, i) => i);
  await time("a split of 20,000 images", () => post("api/split-preview", { images, n: 4 }));
  await time("a quick refit", async () => {
    await post("api/refit/quick");
    while ((await get("api/refit")).phase === "running") await new Promise((next) => setTimeout(next, 100));
  });
  await time("the first page of the report", () => get("api/pages"));
  await post("api/action", { kind: "rename", category: 5, name: "owl" });
  await time("the pages after a change", () => get("api/pages"));
  done(seconds);
});
"""
TARGETS = {  # the largest value that is allowed
    "seconds until the page can be used": 2.0,
    "longest ms of CPU time of a frame": 50.0,
    "longest ms of a frame": 50.0,
    "median ms to label 1,000 images": 200.0,
    "MB of the server, at most": 1000.0,
}


def memory(process: int, what: str) -> float:
    """MB of VmHWM, the most so far with all libraries, or of RssAnon, without the files of libraries."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def children(process: int) -> list[int]:
    found = (task.read_text().split() for task in Path(f"/proc/{process}/task").glob("*/children"))
    return [int(child) for numbers in found for child in numbers]


class MemoryWatch(threading.Thread):
    """The most memory that each process of a server has used, by the words of its command."""

    def __init__(self, server: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.most: dict[int, tuple[float, float]] = {}

    def run(self) -> None:
        while True:
            for child in children(self._server):
                with suppress(OSError, StopIteration):  # it has just ended
                    now = memory(child, "VmRSS"), memory(child, "RssAnon")
                    before = self.most.get(child, now)
                    self.most[child] = max(now[0], before[0]), max(now[1], before[1])
            time.sleep(0.02)


def server_cpu(process: int) -> float:
    """Seconds of CPU time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(browser: Any) -> float:
    """CPU time of the page's main thread: what a frame needs on a machine that has nothing else to do."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def frame_cpu(browser: Any) -> np.ndarray:
    """Milliseconds of CPU time of the page's main thread in each frame while it was scrolled."""
    time.sleep(1)
    entries = [*browser.get_log("performance"), *browser.get_log("performance")]  # the second one has what was left
    messages = (json.loads(entry["message"])["message"] for entry in entries)
    events = [m["params"] for m in messages if m["method"] == "Tracing.dataCollected"]
    frames = [e for e in events if e["name"] == "FireAnimationFrame"]
    main = frames[0]["pid"], frames[0]["tid"]
    tasks = [e for e in events if e["name"].endswith("::RunTask") and (e["pid"], e["tid"]) == main]
    edges = np.sort([e["ts"] for e in frames])
    number = np.searchsorted(edges, [e["ts"] + e.get("dur", 0) for e in tasks])
    return np.bincount(number, [e.get("tdur", 0) / 1000 for e in tasks], len(edges) + 1)[1:-1]


def measure(run: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "promptcal", "serve", str(run), "--port", "0"]
    start = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    link = server.stdout.readline().removeprefix("Open ").strip()
    found: dict[str, Any] = {"seconds until the link is printed": time.perf_counter() - start}
    browser = open_browser()
    browser.set_script_timeout(600)
    try:
        start = time.perf_counter()
        browser.get(link)
        while not browser.execute_script("return document.body.dataset.ready === 'yes'"):
            time.sleep(0.01)
        found["seconds until the page can be used"] = time.perf_counter() - start
        found["seconds of CPU time of the server until then"] = server_cpu(server.pid)
        browser.execute_script("document.querySelector('[data-set=all]').click()")
        time.sleep(1)
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        browser.get_log("performance")
        scrolled = browser.execute_async_script(SCROLL)
        frames, cpu = np.array(scrolled["frames"]), frame_cpu(browser)
        found["frames"] = len(frames)
        found["mean ms of CPU time of a frame"] = float(cpu.mean())
        found["longest ms of CPU time of a frame"] = float(cpu.max())
        found["median ms of a frame"] = float(np.median(frames))
        found["longest ms of a frame"] = float(frames.max())
        found["frames over 50 ms"] = int((frames > 50).sum())
        found["long tasks of the page (over 50 ms)"] = len(scrolled["tasks"])
        before, page_before = server_cpu(server.pid), cpu_seconds(browser)
        times = [browser.execute_async_script(LABEL, 1000 * k) for k in range(7)]
        found["median ms to label 1,000 images"] = float(np.median(times))
        found["longest ms to label 1,000 images"] = max(times)
        cpu_ms = 1000 * (server_cpu(server.pid) - before), 1000 * (cpu_seconds(browser) - page_before)
        found["ms of CPU time of the server to label 1,000 images"] = cpu_ms[0] / len(times)
        found["ms of CPU time of the page to label 1,000 images"] = cpu_ms[1] / len(times)
        found["MB of the server, at most"] = memory(server.pid, "VmHWM")
        watch = MemoryWatch(server.pid)
        watch.start()
        seconds = browser.execute_async_script(COMPUTE)
        found |= {f"seconds for {name}": value for name, value in seconds.items()}
        for number, (mb, anonymous) in enumerate(sorted(watch.most.values()), start=1):
            found[f"MB of computing process {number}, at most"] = mb
            found[f"MB of computing process {number} without files of libraries, at most"] = anonymous
        found["MB of the server, at most"] = memory(server.pid, "VmHWM")
        found["MB of the server without the files of libraries"] = memory(server.pid, "RssAnon")
    finally:
        browser.quit()
        server.terminate()
        server.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--categories", type=int, default=100)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--folder", type=Path, help="where the run is made; by default a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run = make_run(Path(folder), options.images, options.categories, options.dim)
        found = measure(run)
    print(f"{options.images:,} images; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, value in found.items():
        target = TARGETS.get(name)
        verdict = "" if target is None else f"  {'pass' if value <= target else 'FAIL'} (target: at most {target:,.0f})"
        print(f"{value:10,.1f}  {name}{verdict}")


if __name__ == "__main__":
    main()
