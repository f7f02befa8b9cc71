"""The pictures of the documentation, made from real runs with headless Chromium.

    python tools/docs/screenshots.py [--demo RUN]

The demo runs first, which takes minutes; --demo names a finished run of it. Needs chromium and chromedriver. Pictures
of the app show 600 of the included images.
"""

import argparse
import csv
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "labelling_app")]

from serving import served  # noqa: E402

import promptcal  # noqa: E402
from browsing import ActionChains, all_of, colour_scheme, one, size, until  # noqa: E402
from promptcal.app.server import hub_of  # noqa: E402
from promptcal.data import embedded_set  # noqa: E402

WIDTH, HEIGHT = 1160, 730
# Replaces a folder in all texts of the page.
SHORT_PATHS = """
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(arguments[0], "/home/ann");
"""
SMALL = ("model.backbone=vit_tiny_patch4_32.promptcal", "model.image_size=32")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=Path, help="finished run of `promptcal demo`; default: run it now")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="promptcal-pictures-") as folder, browser() as page:
        demo = None if options.demo is None else options.demo.absolute()
        os.chdir(folder)  # so that pages show short paths
        truth = make_folder()
        picture_of_first_fit(page)
        pictures_of_app(page, truth)
        demo = demo or promptcal.demo(output="demo").path.absolute()
        save(Image.open(demo / "sheets" / "overview.png"), "demo-overview.webp")
        picture_of_report(page, demo)


@contextmanager
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        size(session, WIDTH, HEIGHT)
        colour_scheme(session, "light")
        yield session
    finally:
        session.quit()


def save(picture: Image.Image, name: str) -> None:
    """As PNG, or as WebP, which is much smaller for a picture of many photographs."""
    IMAGES.mkdir(exist_ok=True)
    picture.convert("RGB").save(IMAGES / name, optimize=True, quality=90)
    print(f"docs/images/{name}")


def shot(page: Any) -> Image.Image:
    time.sleep(0.4)  # transitions
    return Image.open(io.BytesIO(page.get_screenshot_as_png()))


def make_folder() -> dict[str, str]:
    """Write 600 images into `animals` and labels of some of them beside it; returns the true classes."""
    photos, truth, data = Path("animals"), {}, embedded_set("train")
    photos.mkdir()
    for c, name in enumerate(data.classes):
        for k, i in enumerate(np.flatnonzero(data.labels == c)[:60]):
            file = f"{(37 * (60 * c + k)) % 600:03d}.png"
            Image.fromarray(data.images[i]).save(photos / file)
            truth[file] = name
    labels = Path("labels.csv")
    known = data.classes[:5]
    rows = [(path, name) for path, name in sorted(truth.items()) if name in known and int(path[:3]) % 3 == 0]
    with labels.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return truth


def picture_of_first_fit(page: Any) -> None:
    with served(hub_of(Path("animals"), Path("labels.csv"), None, None, SMALL)) as client:
        page.get(client.link)
        until(lambda: client.get("api/state")["phase"] == "asking", 120)
        until(lambda: "600" in page.find_element("tag name", "main").text, 30)
        until(lambda: not page.find_elements("id", "can-start"), 120)
        page.execute_script(SHORT_PATHS, str(Path.cwd()))
        save(shot(page).crop((0, 0, WIDTH, 640)), "app-first-fit.png")


def pictures_of_app(page: Any, truth: dict[str, str]) -> None:
    """The steps of the labelling loop: name, accept, map, refit."""
    promptcal.fit(
        images="animals", labels="labels.csv", n_classes=10, quick=True, output=Path("run"),
        overrides=SMALL, progress=False,
    )  # fmt: skip
    with served(Path("run")) as client:
        page.get(client.link)
        until(lambda: page.execute_script("return document.body.dataset.ready === 'yes'"), 60)
        steps = [shot(page)]
        save(steps[0], "app-label.png")
        picture_of_map(page)
        found = client.get("api/state")
        names = [category["name"] for category in found["categories"]]
        categories = promptcal.Run(Path("run")).assignments()
        new = [c for c in range(len(names)) if not categories.known[c]]
        true_name = {c: majority(categories, c, truth) for c in new}
        for c in new[:3]:
            client.act("rename", category=c, name=true_name[c])
        # two categories are merged by mistake, and eight images of one of them are labelled: what a refit corrects
        kept, gone = new[3], new[4]
        members = np.flatnonzero(categories.clusters == gone)
        moved = [int(i) for i in members if truth[categories.paths[i]] == true_name[gone]]
        client.act("merge", source=gone, target=kept)
        client.act("create", name=true_name[gone], images=moved[:8])
        page.get(client.link)
        until(lambda: page.execute_script("return document.body.dataset.ready === 'yes'"), 60)
        page.execute_script(f"document.querySelector(`[data-set='{new[0]}']`).click()")
        steps.append(shot(page))
        page.execute_script("location.hash = '#refit'")
        one(page, "#quick-refit").click()
        until(lambda: "would move" in page.find_element("tag name", "main").text, 300)
        steps.append(shot(page))
        save(steps[-1], "app-refit.png")
        one(page, "#accept-refit").click()
        page.execute_script("location.hash = '#label'")
        until(lambda: all_of(page, "[data-set]"))
        page.execute_script("[...document.querySelectorAll('.set[data-set]')].at(-1).click()")
        until(lambda: all_of(page, ".cell img.loaded"))
        steps.append(shot(page))
        save(strip(steps), "labelling-loop.webp")


def majority(found: Any, cluster: int, truth: dict[str, str]) -> str:
    """The class of most images of a category."""
    classes = [truth[path] for path, c in zip(found.paths, found.clusters, strict=True) if c == cluster]
    return max(set(classes), key=classes.count)


def picture_of_map(page: Any) -> None:
    page.execute_script("location.hash = '#map'")
    canvas = until(lambda: [c for c in all_of(page, "#map-canvas") if c.is_displayed()], 300)[0]
    time.sleep(3)
    page.execute_script("[...document.querySelectorAll('main button')].find((b) => b.textContent === 'Lasso').click()")
    box = canvas.rect
    chain = ActionChains(page, duration=20)
    for k, angle in enumerate(np.linspace(0, 2 * np.pi, 20)):  # around the category at the top
        x, y = -0.085 + 0.065 * np.cos(angle), -0.405 + 0.085 * np.sin(angle)
        chain = chain.move_to_element_with_offset(canvas, int(x * box["width"]), int(y * box["height"]))
        chain = chain.click_and_hold() if k == 0 else chain
    chain.release().perform()
    until(lambda: "in the lasso" in one(page, "main").text)
    save(shot(page), "app-map.png")
    page.execute_script("location.hash = '#label'")


def strip(pictures: list[Image.Image]) -> Image.Image:
    """Pictures side by side in two rows, each with its number."""
    width, height, gap = WIDTH * 3 // 4, HEIGHT * 3 // 4, 16
    whole = Image.new("RGB", (2 * width + gap, 2 * height + gap), "white")
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(size=28)
    for i, picture in enumerate(pictures):
        x, y = (i % 2) * (width + gap), (i // 2) * (height + gap)
        whole.paste(picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS), (x, y))
        centre = (x + width - 40, y + height - 40)
        draw.circle(centre, 26, fill="#2f5d9b", outline="white", width=3)
        draw.text(centre, str(i + 1), fill="white", font=font, anchor="mm")
    return whole


def picture_of_report(page: Any, run: Path) -> None:
    size(page, 1300, 900)
    page.get((run / "report.html").absolute().as_uri())
    page.execute_script("location.hash = '#clusters'")
    until(lambda: one(page, "main").text)
    save(shot(page), "report.png")


if __name__ == "__main__":
    main()
