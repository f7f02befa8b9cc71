"""`run.json`: the state of a run and what its results mean."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from promptcal._version import __version__
from promptcal.config.schema import LARGEST_SIDE, MOST_CLASSES
from promptcal.runtime.json_model import JSONModel, check_format, damaged
from promptcal.runtime.reading import MAX_JSON, read_bytes

FORMAT = 2
OLDEST_FORMAT = 2  # that this version reads

Status = Literal["running", "training", "finished", "discarded"]


class RunInfo(JSONModel):
    """State of a run, its images and its categories.

    ``commit`` is the git commit of the package, if it ran from a checkout. ``root`` is the image folder that was given,
    ``folder`` the folder that image names are relative to (None for images that are not files), ``benchmark`` the
    benchmark that the images are of, and ``data_difference`` how they differ from its published ones (None: not at
    all). ``command`` are the words of a command line that name the images again, with absolute paths; empty if the
    images were given in Python.
    ``n_trained_classes`` is the number of known classes that the network was built for, if `promptcal name` added
    others (None: all). ``categories`` and ``sha256`` are known once there is a result. ``launch`` names the torchrun
    launch that started the run. A run in ``training`` has a complete first result, a ``discarded`` one is being
    removed. ``is_frozen``: the result is that of the frozen backbone, whatever the method of the fit.
    """

    format: int = FORMAT
    promptcal: str = __version__
    commit: str | None = None
    status: Status
    is_frozen: bool = False
    root: str | None = None
    folder: str | None = None
    benchmark: str | None = None
    data_difference: str | None = None
    command: list[str] = Field(default_factory=list)
    n_images: Annotated[int, Field(ge=0)] = 0
    n_labelled: Annotated[int, Field(ge=0)] = 0
    known_classes: list[str] = Field(default_factory=list)
    n_trained_classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)] | None = None
    resize: Annotated[int, Field(ge=1, le=LARGEST_SIDE)] = 1
    n_classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)] = 0
    n_classes_estimated: bool = False
    started_from: str | None = None
    launch: str | None = None
    fingerprint: str = ""
    categories: list[str] = Field(default_factory=list)
    former_names: list[str] = Field(default_factory=list)
    sha256: dict[str, str] = Field(default_factory=dict)

    @property
    def has_result(self) -> bool:
        return self.status in ("training", "finished")

    @classmethod
    def read(cls, file: Path) -> Self:
        """The format is checked first: a run of another version gets a message that says so."""
        try:
            content = json.loads(read_bytes(file, MAX_JSON))
            if not isinstance(content, dict):
                raise TypeError(f"it holds a {type(content).__name__}")
        except (OSError, ValueError, TypeError, RecursionError) as error:  # no JSON, no UTF-8
            raise damaged(file, error) from error
        made_by = str(content.get("promptcal", ""))[:40]
        check_format(content.get("format"), FORMAT, OLDEST_FORMAT, str(file.parent), made_by)
        return super().read(file)

    @model_validator(mode="after")
    def _finished_run_is_complete(self) -> Self:
        if self.has_result:
            if not self.categories or len(set(self.categories)) < len(self.categories):
                raise ValueError("categories must be given, each once")
            if not set(self.known_classes) <= set(self.categories):
                raise ValueError("known_classes must be among the categories")
        return self
