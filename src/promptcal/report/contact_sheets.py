"""Contact sheets: a PNG for each category, from its most typical image to its most doubtful, and an overview."""

import re
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from promptcal.report.selection import members_by_confidence, sample_evenly
from promptcal.run import Assignments
from promptcal.runtime.files import write_with

_TILE, _GAP, _TITLE = 64, 4, 22
_TEXT, _BACKGROUND = (30, 30, 30), (255, 255, 255)
_KNOWN, _NEW = (70, 110, 160), (190, 90, 40)


class SheetPictures(Protocol):
    """Pictures by position, as uint8 arrays H x W x 3."""

    def image(self, index: int) -> np.ndarray: ...


def write_contact_sheets(folder: Path, store: SheetPictures, assignments: Assignments) -> None:
    """`NN-name.png` for each category, and `overview.png` with a row for each."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, bool, np.ndarray]] = []
    for cluster, name in enumerate(assignments.names):
        members = members_by_confidence(assignments, cluster, unlabelled=True)
        is_new = not assignments.known[cluster]
        rows.append((f"{name} ({len(members)} images)", is_new, members))
        if len(members):
            sheet = _sheet(store, [(rows[-1][0], is_new, sample_evenly(members, 100))], columns=10)
            _save(sheet, folder / f"{cluster:02d}-{_file_name(name)}.png")
    overview = [(title, is_new, sample_evenly(members, 12)) for title, is_new, members in rows]
    _save(_sheet(store, overview, columns=12), folder / "overview.png")


def _sheet(store: SheetPictures, groups: list[tuple[str, bool, np.ndarray]], columns: int) -> Image.Image:
    pitch = _TILE + _GAP
    heights = [_TITLE + pitch * max(1, -(-len(members) // columns)) for _, _, members in groups]
    canvas = Image.new("RGB", (_GAP + columns * pitch, sum(heights) + _GAP), _BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(13)
    top = 0
    for (title, is_new, members), height in zip(groups, heights, strict=True):
        draw.rectangle((_GAP, top + 5, _GAP + 8, top + 17), fill=_NEW if is_new else _KNOWN)
        draw.text((_GAP + 14, top + 3), _drawable(title, font), fill=_TEXT, font=font)
        for position, member in enumerate(members):
            row, column = divmod(position, columns)
            tile = Image.fromarray(centre_square(store.image(int(member)), _TILE))
            canvas.paste(tile, (_GAP + column * pitch, top + _TITLE + row * pitch))
        top += height
    return canvas


def centre_square(image: np.ndarray, side: int) -> np.ndarray:
    """The centre square of an image, resized to ``side`` pixels."""
    height, width = image.shape[:2]
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    square = Image.fromarray(np.ascontiguousarray(image[top : top + shorter, left : left + shorter]))
    return np.asarray(square.resize((side, side), Image.Resampling.BICUBIC))


def _drawable(title: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """The title without characters that the font lacks, cut to fit a sheet."""
    title = " ".join(title.split())
    try:
        font.getmask(title)
    except (UnicodeError, OSError):
        title = title.encode("ascii", "replace").decode()
    return title if len(title) <= 90 else title[:87] + "..."


def _file_name(name: str) -> str:
    """A class name as part of a file name: it cannot leave the folder, and every file system accepts it."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[:60] or "class"


def _save(image: Image.Image, path: Path) -> None:
    write_with(path, lambda temporary: image.save(temporary, format="PNG", compress_level=1))
