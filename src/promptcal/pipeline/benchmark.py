"""Fit a benchmark with its preset, and score it by its protocol."""

from dataclasses import fields
from pathlib import Path

from promptcal.data import benchmarks
from promptcal.data.benchmarks.benchmark_data import load_test_images
from promptcal.pipeline.fit import run_fit
from promptcal.pipeline.problem import Inductive, TestSet
from promptcal.pipeline.request import BenchmarkRequest, FitRequest, RunRequest
from promptcal.run.inference import Run
from promptcal.runtime import distributed


@distributed.distributed_entry_point
def run_benchmark(request: BenchmarkRequest) -> Run:
    """A benchmark is scored on its unlabelled training images; `NAME-inductive` on its test images.

    `NAME-dev` is a smaller benchmark made of the labelled images of NAME (`development_split`).

    With ``start_from``, settings and labels are those of the previous run, and ``labels`` are added. The result of
    training is then kept only if held-out labels prefer it, as in a fit, unless ``keep`` says otherwise.
    """
    spec = benchmarks.get_benchmark(request.name)
    group = distributed.group()
    if request.download and not group.is_first:
        group.wait()  # until the first process has downloaded it
    data = benchmarks.load_benchmark(request.name, request.root, request.download)
    if request.download and group.is_first:
        group.wait()
    inductive = None
    if data.test is not None and data.validation is not None:
        inductive = Inductive(data.validation, data.test, data.test_truth())
    options = {option.name: getattr(request, option.name) for option in fields(RunRequest)}
    is_new = request.start_from is None
    if is_new and request.labels is None:
        options["labels"] = data.labels()
    if not is_new and request.keep is None:
        options["keep"] = "better"
    return run_fit(
        FitRequest(
            **options,
            images=data.train,
            truth=data.truth(),
            preset=spec.preset if is_new else None,
            n_classes=len(data.class_names) if is_new else None,
            inductive=inductive,
            read_test=lambda: TestSet(*load_test_images(request.name, request.root)),
            benchmark=request.name,
            data_difference=data.difference,
            protocol=request.protocol,
            command=_command(request),
        )
    )


def _command(request: BenchmarkRequest) -> tuple[str, ...]:
    root = benchmarks.default_root() if request.root is None else Path(request.root)
    return ("benchmark", request.name, *(("--root", str(root.absolute())) if root.is_dir() else ()))
