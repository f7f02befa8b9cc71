"""Columns of numbers as text: little-endian bytes in base64, as in the data of a report."""

import base64
import binascii

import numpy as np

from promptcal.errors import LabelError


def packed(column: np.ndarray, dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(column, dtype=dtype).tobytes()).decode("ascii")


def unpacked(text: str, dtype: str, length: int) -> np.ndarray:
    """A column of exactly ``length`` numbers; a `LabelError` otherwise."""
    try:
        column = np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype)
    except (binascii.Error, ValueError) as error:
        raise LabelError(f"a column of numbers is damaged ({error}); load the page again") from error
    if len(column) != length:
        raise LabelError(f"a column has {len(column)} numbers for {length} images; load the page again")
    return column
