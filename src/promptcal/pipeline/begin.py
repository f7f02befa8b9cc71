"""The run directory at the start of a fit: written for a new run, compared for a resumed one."""

import hashlib

from promptcal._version import source_commit
from promptcal.config import Config, flatten
from promptcal.data import ImageStore, StreamedImages
from promptcal.discovery.class_count import ClassCount
from promptcal.errors import RunError
from promptcal.pipeline.inputs import FitInputs
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Problem
from promptcal.report.class_count_curves import write_class_count
from promptcal.run.directory import RunDirectory
from promptcal.run.info import RunInfo
from promptcal.runtime import distributed, files


def begin_run(
    directory: RunDirectory,
    info: RunInfo,
    config: Config,
    count: ClassCount | None,
    skipped: list[tuple[str, str, int]],
    *,
    resume: bool,
) -> None:
    """Write what a new run begins with, or check that the run to resume has the same images, labels and settings."""
    if resume:
        _check_same_run(directory, info, config)
        if info.launch is not None:
            directory.update_info(launch=info.launch)
        return
    directory.clear()
    files.write_text(directory.config_file, config.to_yaml())
    if count is not None:
        write_class_count(directory.path, count)
    if skipped:
        files.write_csv(directory.skipped_file, ["path", "reason", "position"], skipped)
    info.model_copy(update={"commit": source_commit()}).write(directory.info_file)


def run_info(inputs: FitInputs, problem: Problem, config: Config, resize: int, fingerprint: str) -> RunInfo:
    root, previous = problem.images.root, inputs.previous
    return RunInfo(
        status="running",
        root=None if root is None else str(root.absolute()),
        folder=problem.images.folder(),
        benchmark=inputs.benchmark,
        data_difference=inputs.data_difference,
        command=inputs.command,
        n_images=len(problem.images),
        n_labelled=int((problem.labels >= 0).sum()),
        known_classes=problem.classes,
        resize=resize,
        n_classes=config.n_classes,
        n_classes_estimated=config.n_classes_estimated,
        started_from=None if previous is None else str(previous.path.absolute()),
        launch=distributed.launch(),
        fingerprint=fingerprint,
    )


def fingerprint(store: ImageStore | StreamedImages, problem: Problem, previous: PreviousRun | None) -> str:
    """A hash of everything that a resumed run must find unchanged: pixels, names, labels."""
    digest = hashlib.sha256(store.fingerprint_data())
    digest.update("\0".join(problem.images.names).encode("utf-8", "surrogateescape"))
    digest.update(problem.labels.tobytes())
    if problem.inductive is not None:
        digest.update(problem.inductive.validation.tobytes())
    if previous is not None:
        digest.update(previous.digest)
    return digest.hexdigest()


def _check_same_run(directory: RunDirectory, info: RunInfo, config: Config) -> None:
    if directory.info().fingerprint != info.fingerprint:
        raise RunError(f"the run in {directory.path} has other images or labels; give the same ones to resume")
    then, now = flatten(directory.config().model_dump()), flatten(config.model_dump())
    changed = sorted(key for key in then if then[key] != now.get(key))
    if changed:
        raise RunError(
            f"the run in {directory.path} has {changed[0]}={then[changed[0]]}; give the same settings to resume, "
            "or --overwrite to start again"
        )
