"""Over 300 files that are no proper images, made from real ones: cut short, flipped, lying, empty or enormous."""

import os
import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from promptcal.data import embedded_set

FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "tif": "TIFF"}
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"


def encoded(picture, kind, **options):
    buffer = BytesIO()
    Image.fromarray(picture).save(buffer, format=kind, **options)
    return buffer.getvalue()


def png(width, height, *chunks, depth=8, colour=2):
    """A PNG of whatever header and chunks, with proper checksums."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    told = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(told)


def flat_png(width, height, colour=6):
    """A real, valid PNG of one colour: a few hundred KB that decode to hundreds of MB."""
    row = bytes(1 + width * {2: 3, 6: 4}[colour])
    packer = zlib.compressobj(1)
    data = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    return png(width, height, (b"IDAT", data), colour=colour)


def text_bomb():
    """A compressed comment of 200 MB in a small picture."""
    packer = zlib.compressobj(9)
    data = b"".join([*(packer.compress(bytes(10**6)) for _ in range(200)), packer.flush()])
    return png(8, 8, (b"zTXt", b"Comment\0\0" + data), (b"IDAT", zlib.compress(bytes(8 * 25))))


def bombs():
    """Headers that promise far more than memory holds."""
    tiny = (b"IDAT", zlib.compress(bytes(64)))
    gif = bytearray(encoded(np.zeros((8, 8, 3), np.uint8), "GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    place = gif.index(b",\0\0\0\0") + 5
    gif[place : place + 4] = struct.pack("<HH", 65535, 65535)
    jpeg = bytearray(encoded(np.zeros((8, 8, 3), np.uint8), "JPEG"))
    place = jpeg.index(b"\xff\xc0") + 5
    jpeg[place : place + 4] = struct.pack(">HH", 65500, 65500)
    bmp = bytearray(encoded(np.zeros((8, 8, 3), np.uint8), "BMP"))
    bmp[18:26] = struct.pack("<ii", 2**31 - 1, 2**31 - 1)
    tif = bytearray(encoded(np.zeros((8, 8, 3), np.uint8), "TIFF"))
    for tag in (256, 257):
        place = tif.index(struct.pack("<HHI", tag, 4 if struct.pack("<HHI", tag, 4, 1) in tif else 3, 1))
        tif[place : place + 12] = struct.pack("<HHII", tag, 4, 1, 400_000)
    return {
        "bomb-2g.png": png(50_000, 50_000, tiny),
        "bomb-4e18.png": png(2**31 - 1, 2**31 - 1, tiny),
        "bomb-90m.png": png(9_500, 9_500, tiny),
        "bomb.gif": bytes(gif),
        "bomb.jpg": bytes(jpeg),
        "bomb.bmp": bytes(bmp),
        "bomb.tif": bytes(tif),
        "bomb-text.png": text_bomb(),
    }


def odd_ones(sound):
    """Not broken by chance but by name, place or shape."""
    return {
        "zero.jpg": b"", "zero.png": b"", "one-byte.gif": b"G", "magic.png": b"\x89PNG\r\n\x1a\n",
        "nul.jpg": bytes(4096), "text.png": "no image".encode("utf-16"), "html.gif": b"<html><script>1</script>",
        "postscript.jpg": POSTSCRIPT, "postscript.png": b"\xc5\xd0\xd3\xc6" + POSTSCRIPT,
        "pdf.png": b"%PDF-1.7\n1 0 obj", "svg.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "pickle.tif": b"\x80\x04cos\nsystem\n.",
        "line.png": encoded(np.zeros((1, 30_000, 3), np.uint8), "PNG"),
        "pole.png": encoded(np.zeros((30_000, 1, 3), np.uint8), "PNG"),
        "huge-chunk.png": b"\x89PNG\r\n\x1a\n\x7f\xff\xff\xffIHDR" + bytes(40),
        "circle.tif": sound["tif"][:4] + struct.pack("<I", 8) + sound["tif"][8:],
    }  # fmt: skip


def whole_ones(sound):
    """Odd, but images: of a single pixel, and under another format's name."""
    return {
        "pixel.png": encoded(np.zeros((1, 1, 3), np.uint8), "PNG"),
        "really-png.jpg": sound["png"], "really-jpg.png": sound["jpg"], "really-gif.webp": sound["gif"],
        "really-webp.tif": sound["webp"], "really-tif.gif": sound["tif"],
    }  # fmt: skip


def write_corpus(folder, *, each=30):
    """Fill a folder; returns the names of all that is to be reported or read, and of those that are surely sound."""
    generator = np.random.default_rng(0)
    pictures = embedded_set("train").images[:each]
    first = {suffix: encoded(pictures[0], kind) for suffix, kind in FORMATS.items()}
    content = {**bombs(), **odd_ones(first), **whole_ones(first)}
    for suffix, kind in FORMATS.items():
        for i, picture in enumerate(pictures):
            data = np.frombuffer(encoded(picture, kind), np.uint8)
            cut = data[: generator.integers(1, len(data) - 1)]
            flipped = data.copy()
            places = generator.integers(0, len(data), 1 + i % 8)
            flipped[places] ^= np.left_shift(1, generator.integers(0, 8, len(places))).astype(np.uint8)
            content[f"cut-{i:02d}.{suffix}"] = cut.tobytes()
            content[f"flipped-{i:02d}.{suffix}"] = flipped.tobytes()
    sound = {f"sound-{i:02d}.png": encoded(picture, "PNG") for i, picture in enumerate(pictures[:8])}
    for name, data in {**content, **sound}.items():
        (folder / name).write_bytes(data)
    (folder / "folder.jpg").mkdir()
    (folder / "folder.jpg" / "inside.png").write_bytes(first["png"])
    os.symlink(folder / "nowhere", folder / "dangling.png")
    os.mkfifo(folder / "pipe.png")  # a pipe nobody writes to: whoever opens it waits
    os.symlink(folder / "pipe.png", folder / "link-to-pipe.png")
    os.symlink("/dev/zero", folder / "link-to-zeros.png")
    os.symlink(folder, folder / "circle")
    names = {*content, *sound, "folder.jpg/inside.png", "dangling.png"}
    return names, {*sound, *whole_ones(first), "folder.jpg/inside.png"}
