"""Tables as pandas data frames. pandas is not a dependency; it is imported if a data frame is asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

from promptcal.errors import MissingPackageError


def data_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingPackageError("to_pandas() needs pandas; pip install pandas") from error
    return pandas.DataFrame(dict(columns))
