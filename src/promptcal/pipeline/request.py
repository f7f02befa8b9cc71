"""What a fit is asked for: every option is declared here once, for Python, the command line and the estimator.

This module imports nothing heavy: the command line builds its help from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from promptcal.config.names import preset_names
from promptcal.methods import METHODS

if TYPE_CHECKING:
    from promptcal.pipeline.problem import Inductive, TestSet

# ruff: noqa: RUF009 - `option` returns a dataclass field

PathOrText = str | PathLike[str]
Protocol = Literal["default", "published"]
PROTOCOL_HELP = (
    "published: each method trains on all labels and keeps an epoch by the rule of its paper (PromptCAL: the best on "
    "the test images). default: labels are held out to select an epoch."
)
_KEEP_HELP = (
    "Result to keep. better: the first one if training did not help, by held-out labels and stability of the clusters. "
    "trained: always that of training."
)
_READOUT = {"help": "The default of clustering.readout, unless the protocol is published.", "cli": False}
_INTERNAL = {"cli": False, "internal": True}  # only for a request that a benchmark or a table makes


def option(default: Any = None, *, help: str, **cli: Any) -> Any:
    """A field with its help text, or another text for Python (``python``).

    For the command line: ``flag``, ``metavar``, ``cli`` (its type), ``first``.
    """
    return field(default=default, metadata={"help": help, **cli})


@dataclass(frozen=True, kw_only=True)
class LabelledRequest:
    """Options of every command that takes labels."""

    labels: Any = option(
        cli=Path | None,
        first=True,
        help="CSV, TSV or parquet file with the columns path,label; other images are unlabelled. Default: class "
        "folders beside a folder named unlabelled, if there are any.",
        python="Label file with the columns path,label; a mapping path -> label; a data frame; or one label per image. "
        "Empty, missing or -1 means unlabelled. Default: class folders beside a folder named unlabelled.",
    )
    seed: int | None = option(help="Random seed. Default: 0.")
    device: str | None = option(help="auto, cpu, cuda or mps.")
    overrides: tuple[str, ...] = option(
        (),
        flag="--set",
        metavar="KEY=VALUE",
        help="Change one setting, such as affinity.k=10. May be repeated.",
        python="Changed settings, such as ['affinity.k=10'].",
    )
    progress: bool = option(True, help="Show progress.")


@dataclass(frozen=True, kw_only=True)
class ResultRequest(LabelledRequest):
    """Options of every command that writes a run directory."""

    output: PathOrText = field(metadata={"help": "Run directory to write.", "cli": Path})
    start_from: PathOrText | None = option(
        flag="--from",
        metavar="RUN",
        cli=Path | None,
        help="Finished run to continue with new labels. Its settings, weights, labels and the numbers and names of its "
        "categories are kept; changes.csv lists the images that moved.",
    )
    keep_confirmed: bool = option(
        False,
        help="With --from: images of confirmed categories (known, named or merged) stay in them unless a label says "
        "otherwise. Default: they may move to another known category; large losses are reported.",
    )
    report: bool = option(
        True, flag="--report/--no-report", help="Write report.html at the end, as `promptcal report` does."
    )
    overwrite: bool = option(False, help="Discard the run in --output, if there is one.")


@dataclass(frozen=True, kw_only=True)
class CommonRequest(LabelledRequest):
    """Options of every command that embeds images."""

    skip_unreadable: bool = option(False, help="Skip images that cannot be read.")


@dataclass(frozen=True, kw_only=True)
class RunRequest(CommonRequest, ResultRequest):
    """Options of every command that trains."""

    method: str | None = option(help=f"Method: {', '.join(METHODS.names())}. Default: promptcal.")
    precision: str | None = option(
        help="auto, fp32 or bf16: precision of the network's matrix products. auto: bf16 on a GPU or CPU with fast "
        "bf16 products."
    )
    compile: bool | None = option(
        flag="--compile/--no-compile", help="Compile the network. Default: on CUDA, for runs of 2,000 steps or more."
    )
    deterministic: bool = option(
        False, help="Use only deterministic algorithms: bit-equal repetitions, slower on a GPU. A CPU always does."
    )
    generic_images: PathOrText | None = option(
        cli=Path | None,
        help="Folder of generic images, such as ImageNet's. In the first epochs of PromptCAL, the class token is "
        "distilled from the frozen backbone on them. Default: no distillation.",
    )
    warmup_from: PathOrText | None = option(
        metavar="RUN",
        cli=Path | None,
        help="Run with the same images, labels, seed and settings of stage 1, whose stage 1 is reused.",
    )
    allow_long: bool = option(False, help="Train on a CPU even if it takes more than 30 minutes.")
    verbose: bool = option(
        False,
        help="Print losses, validation scores and graph statistics after each epoch, and at the end NMI, ARI and the "
        "time of each phase.",
    )
    keep: Literal["better", "trained"] | None = option(
        metavar="better|trained", cli=str | None, help=f"{_KEEP_HELP} Default: trained, and better with --from."
    )
    confirm: Callable[[str], bool] | None = field(
        default=None, metadata={"help": "Asks the user a question; a long run on a CPU needs a yes.", "cli": False}
    )
    first_result: bool = field(
        default=True,
        metadata={"help": "Write a first result before training, for somebody who waits for the run.", "cli": False},
    )
    readout: Literal["head"] | None = field(default=None, metadata=_READOUT)
    resume: bool = option(False, help="Continue the unfinished run in --output.")
    stop_after: float | None = option(
        metavar="MINUTES",
        help="Stop training after this time, at a checkpoint from which --resume continues (exit code 75).",
        python="Minutes after which training stops with `promptcal.errors.Interrupted`, at a checkpoint from which "
        "``resume`` continues.",
    )


@dataclass(frozen=True, kw_only=True)
class ImagesRequest(CommonRequest):
    """The user's own images, and the settings to embed them with.

    ``images`` and ``labels`` are what `ImageSet.of` and `parse_labels` take, such as a folder and a file. ``preset``
    may be a mapping of settings, ``config`` a `Config`, which is then the whole configuration.
    """

    images: Any = field(
        metadata={
            "help": "Folder of images, sub-folders included, or a quoted pattern such as 'photos/**/*.jpg'.",
            "python": "Folder of images, sub-folders included; a pattern such as 'photos/**/*.jpg'; a list of image "
            "files, PIL images or arrays; one array; or a Hugging Face dataset.",
            "argument": True,
            "cli": Path,
        }
    )
    backbone: str | None = option(
        help="timm name of a ViT. Default: DINOv2 with registers at 224 px, ViT-B/14 or on a CPU ViT-S/14, downloaded "
        "once. vit_tiny_patch4_32.promptcal is included in the package."
    )
    weights: PathOrText | None = option(cli=Path | None, help="Local weight file for the backbone.")
    preset: Any = option(cli=str | None, help=f"Settings to start from: {', '.join(preset_names())}.")
    config: Any = option(cli=Path | None, help="YAML file of settings.")


@dataclass(frozen=True, kw_only=True)
class FitRequest(ImagesRequest, RunRequest):
    """A fit of the user's own images. ``truth`` has the form of ``labels``."""

    n_classes: int | Literal["auto"] | None = option(
        metavar="N|auto",
        first=True,
        help="Number of categories, known and new together; auto: estimated from the labelled images.",
    )
    sample: int | None = option(
        metavar="N",
        help="Fit on all labelled images and N others, drawn at random. The images may then be a source of any size: a "
        "folder, tar or parquet files, a list of images, URLs. `promptcal predict` covers all of them. Default: all "
        "images of a folder, and 200,000 of other sources.",
    )
    quick: bool = option(
        False,
        help="Train no network: only the read-out is trained, on the features of the backbone as it is. Minutes on a "
        "CPU. The same as --method frozen.",
    )
    truth: Any = option(
        cli=Path | None,
        help="CSV with true classes, used only to report accuracy.",
        python="True classes in any form of ``labels``, used only to report accuracy.",
    )
    keep: Literal["better", "trained"] | None = option(
        "better", metavar="better|trained", cli=str | None, help=f"{_KEEP_HELP} Default: better."
    )
    readout: Literal["head"] | None = field(default="head", metadata=_READOUT)
    inductive: "Inductive | None" = field(
        default=None, metadata={"help": "Validation and test images of the inductive protocol.", **_INTERNAL}
    )
    read_test: "Callable[[], TestSet] | None" = field(
        default=None, metadata={"help": "Reads the test images, which selection.by=oracle needs.", **_INTERNAL}
    )
    benchmark: str | None = field(
        default=None, metadata={"help": "Name of the benchmark that the images are of.", **_INTERNAL}
    )
    data_difference: str | None = field(
        default=None, metadata={"help": "How the images differ from the benchmark's published ones.", **_INTERNAL}
    )
    protocol: Protocol | None = field(
        default=None, metadata={"help": "default or published. Default: default.", **_INTERNAL}
    )
    command: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Command and arguments with which messages repeat this fit. Default: fit and its images.",
            **_INTERNAL,
        },
    )


@dataclass(frozen=True, kw_only=True)
class BenchmarkRequest(RunRequest):
    """A fit of a benchmark with its preset, scored by its protocol."""

    labels: Any = option(
        cli=Path | None,
        first=True,
        help="CSV, TSV or parquet file with the columns path,label, such as the one that the report of --from "
        "downloads. Default: the labels of the benchmark.",
        python="As in `fit`, such as the file that the report of ``start_from`` downloads. Default: the labels of the "
        "benchmark.",
    )
    name: str = field(metadata={"help": "A name from `promptcal datasets`.", "argument": True})
    root: PathOrText | None = option(
        cli=Path | None,
        help="Folder with the datasets. Default: the environment variable PROMPTCAL_DATA, or ./data.",
    )
    protocol: Protocol | None = option(metavar="default|published", cli=str | None, help=PROTOCOL_HELP)
    download: bool = option(False, help="Download the dataset first if it is missing.")


@dataclass(frozen=True, kw_only=True)
class EstimateRequest(ImagesRequest):
    """An estimate of the number of classes; it needs labels of at least two classes."""

    run: Any = option(
        cli=Path | None, help="Finished run whose network embeds the images. Default: the pretrained backbone."
    )
    max_classes: int | None = option(
        help="Largest number to try. Default: a tenth of the number of images, at most 1,000."
    )
    search: Literal["calibrated", "grid", "published"] | None = option(
        metavar="calibrated|grid|published",
        cli=str | None,
        help="calibrated (default): several estimators and an interval, measured on known classes that are hidden. "
        "published: Brent's search from the known classes to 1,000 for the best accuracy on labelled images. "
        "grid: the same on a coarse grid first, and the silhouette decides among equal accuracies.",
    )
    output: PathOrText | None = option(cli=Path | None, help="Folder to write the curves to (PNG, CSV, JSON).")


@dataclass(frozen=True, kw_only=True)
class ClusterRequest(ResultRequest):
    """A run on features of another model. ``features`` is what `FeatureSet.of` takes."""

    labels: Any = option(
        cli=Path | None,
        first=True,
        help="CSV, TSV or parquet file with the columns id,label; other rows are unlabelled.",
        python="Label file with the columns id,label; a mapping id -> label; a data frame; or one label per row. "
        "Empty, missing or -1 means unlabelled.",
    )
    features: Any = field(
        metadata={
            "help": "File with a row of numbers for each image or other thing: npy, npz, parquet or arrow (an id "
            "column and a column of lists), safetensors, CSV; or a folder of parquet files, such as the output of "
            "`promptcal embed`.",
            "argument": True,
            "cli": Path,
        }
    )
    n_classes: int | Literal["auto"] | None = option(
        metavar="N|auto",
        first=True,
        help="Number of categories, known and new together; auto: estimated. Default: auto, or that of --from.",
    )
    sample: int | None = option(
        metavar="N",
        help="For a folder of shards: fit on all labelled rows and N others, drawn at random, then assign every row "
        "(OUTPUT/assignments). Default: 200,000.",
    )
    images: PathOrText | None = option(
        cli=Path | None, help="Folder with the picture of each row: ids are paths in it, with or without the suffix."
    )
    ids: Any = option(
        cli=Path | None,
        help="Text file with the id of each row, one in a line. Default: those of the file, or 0, 1, ...",
        python="List of ids, or a text file with one id in each line. Default: those of the file or of the index, or "
        "0, 1, ...",
    )
    truth: Any = option(
        cli=Path | None,
        help="CSV with true classes, used only to report accuracy.",
        python="True classes in any form of ``labels``, used only to report accuracy.",
    )
    adapt: bool = option(
        False,
        help="Whiten the features by the covariance within the labelled classes, if hidden labels show a gain.",
    )


@dataclass(frozen=True, kw_only=True)
class ShardRequest:
    """Options of every command that writes shards. ``source`` is a location or a list of locations."""

    source: Any = field(
        metadata={
            "help": "Folder of images, of webdataset tars or of parquet files; tar or parquet files; or a text file "
            "with a path or URL in each line. Quoted patterns and URLs (s3://, gs://, https://) are allowed.",
            "argument": True,
            "cli": list[str],
        }
    )
    output: PathOrText = field(metadata={"help": "Folder of shards to write. Finished shards are kept.", "cli": Path})
    engine: str = option(
        "local",
        metavar="local|array|ray",
        help="local: processes on this machine. array: shard i of n in this process, started by torchrun or a Slurm "
        "array. ray: a Ray cluster, or Ray on this machine (the optional extra ray).",
    )
    workers: int | None = option(help="Processes of local or ray. Default: one for each GPU or core.")
    address: str | None = option(help="Address of a Ray cluster, such as auto. Default: Ray on this machine.")
    shard_size: int = option(10_000, help="Images in each shard of a folder or list. Default: 10,000.")
    device: str | None = option(help="auto, cpu, cuda or mps.")
    progress: bool = option(True, help="Show progress.")


@dataclass(frozen=True, kw_only=True)
class EmbedRequest(ShardRequest):
    """Embeddings by the network of a finished run, or by a pretrained backbone."""

    run: Any = option(cli=Path | None, first=True, help="Finished run whose network embeds the images.")
    backbone: str | None = option(help="timm name of a ViT, as in fit, if no run is given.")
    weights: PathOrText | None = option(cli=Path | None, help="Local weight file for the backbone.")
    preset: Any = option(cli=str | None, help=f"Settings to start from: {', '.join(preset_names())}.")
    config: Any = option(cli=Path | None, help="YAML file of settings.")
    overrides: tuple[str, ...] = option(
        (),
        flag="--set",
        metavar="KEY=VALUE",
        help="Change one setting, such as data.resize=256. May be repeated.",
        python="Changed settings, such as ['data.resize=256'].",
    )


@dataclass(frozen=True, kw_only=True)
class PredictShardsRequest(ShardRequest):
    """Categories of a finished run for every image, or every embedding, of a source."""

    run: Any = field(metadata={"help": "Run directory of a finished fit."})
    none_below: float | None = option(
        help="Answer 'none of these' below this cosine with the nearest centroid. Default: the cosine that 95 % of the "
        "fit's unlabelled images reach."
    )
    accept_all: bool = option(False, help="Never answer 'none of these'.")
