"""Tables as pandas data frames and in notebooks. pandas is not a dependency; it is imported if it is asked for."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from promptcal.errors import MissingPackageError

_MAX_ROWS = 30


def data_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingPackageError("to_pandas() needs pandas; pip install pandas") from error
    return pandas.DataFrame(dict(columns))


def html_table(header: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> str:
    """A table, cut after 30 rows; only the caption without rows."""
    rows = list(rows)
    if not rows:
        return f"<p>{html.escape(caption)}</p>"
    cells = [("th", header), *(("td", row) for row in rows[:_MAX_ROWS])]
    lines = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(str(value))}</{tag}>" for value in row) + "</tr>" for tag, row in cells
    )
    more = f"<p>... and {len(rows) - _MAX_ROWS} more</p>" if len(rows) > _MAX_ROWS else ""
    return f"<p>{html.escape(caption)}</p><table>{lines}</table>{more}"
