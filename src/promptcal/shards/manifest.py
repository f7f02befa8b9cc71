"""The files that describe a folder of shards: the plan, an entry for each finished shard, and the manifest."""

import platform
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from promptcal._version import __version__
from promptcal.runtime.json_model import JSONModel

FORMAT = 1
_REPORTED = ("torch", "timm", "pillow", "pyarrow", "numpy")

InputKind = Literal["tar", "parquet", "list", "embeddings"]
# Of a file in the folder, so it leads to no other one.
ShardName = Annotated[str, Field(pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]*$", max_length=200)]
Rows = Annotated[int, Field(ge=0, lt=2**31)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]


class ShardFile(JSONModel):
    remedy: ClassVar[str] = "remove it, then run the same command again"


class InputShard(ShardFile):
    """One unit of work. ``name`` is that of the output without its suffix, and depends only on the input.

    A tar or parquet file is one shard. A list of images is divided: the shard has the lines from byte ``first`` to
    ``last`` of the file ``location``, and paths in it are relative to ``root``.
    """

    name: ShardName
    kind: InputKind
    location: str
    first: Bytes = 0
    last: Bytes = 0
    root: str = ""


class ShardPlan(ShardFile):
    """`plan.json`: what is computed from what. ``work`` identifies the model and the options that change the output."""

    format: int = FORMAT
    work: dict[str, Any]
    source: list[str]
    shards: list[InputShard]


class UnreadableEntry(ShardFile):
    id: str
    reason: str


class ShardEntry(ShardFile):
    """`entries/NAME.json`: a finished shard. It is written after the shard itself."""

    name: ShardName
    input: str
    rows: Rows
    bytes: Bytes
    sha256: str
    seconds: float
    versions: dict[str, str]
    unreadable: list[UnreadableEntry] = Field(default_factory=list)


class ManifestShard(ShardFile):
    """``promptcal`` is the version that wrote the shard; empty in the manifest of an earlier one."""

    name: ShardName
    input: str
    rows: Rows
    unreadable: Rows
    bytes: Bytes
    sha256: str
    promptcal: str = ""


class ShardManifest(ShardFile):
    """`manifest.json`: written when all shards are finished and all ids differ."""

    format: int = FORMAT
    work: dict[str, Any]
    source: list[str]
    versions: dict[str, str]
    rows: Bytes
    unreadable: Bytes
    shards: list[ManifestShard]

    @classmethod
    def of(cls, plan: ShardPlan, entries: list[ShardEntry]) -> "ShardManifest":
        shards = [
            ManifestShard(
                name=entry.name,
                input=entry.input,
                rows=entry.rows,
                unreadable=len(entry.unreadable),
                bytes=entry.bytes,
                sha256=entry.sha256,
                promptcal=entry.versions.get("promptcal", ""),
            )
            for entry in entries
        ]
        return cls(
            work=plan.work,
            source=plan.source,
            versions=versions(),
            rows=sum(entry.rows for entry in entries),
            unreadable=sum(len(entry.unreadable) for entry in entries),
            shards=shards,
        )


@cache
def versions() -> dict[str, str]:
    """The versions of the programs that the values depend on."""
    return {"promptcal": __version__, "python": platform.python_version(), **{p: version(p) for p in _REPORTED}}
