"""Format numbers of the files that a run writes."""

from typing import Any

from promptcal._version import __version__
from promptcal.errors import RunError


def check_format(found: Any, newest: int, oldest: int, what: str, made_by: str = "") -> None:
    """Reject a format that this version cannot read: missing, invalid, too old or too new."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        reason = "no format number" if found is None else f"an invalid format number {str(found)[:40]!r}"
        raise RunError(f"{what} has {reason}, so it is damaged or not written by promptcal; fit again with --overwrite")
    by = f" (written by promptcal {made_by})" if made_by else ""
    reason = f"{what} has format {found}{by} and promptcal {__version__} reads"
    if found > newest:
        raise RunError(f"{reason} up to {newest}; upgrade promptcal")
    if found < oldest:
        raise RunError(f"{reason} {oldest} and later; use that version to read it, or fit again")
