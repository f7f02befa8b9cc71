"""Files that are whole or absent: written under a temporary name beside their place, then renamed."""

import csv
import io
import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


def write_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file, flush it to disk, then put it in place."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    write_text(path, csv_text(header, rows))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def write_json(path: Path, value: Any) -> None:
    """JSON that any reader takes: numbers that are not finite become null."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_with(path, lambda temporary: save_file(contiguous, temporary))
