"""Step 3 of a fit: assign every image with the selected weights, calibrate, and write the results."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.calibration import Calibration
from promptcal.discovery.partition import Partition, rank_in_blocks
from promptcal.exporters.table_files import write_parquet_if_installed
from promptcal.methods.assignment import Assignment
from promptcal.pipeline.agreed_number import agreed_number, compares_numbers
from promptcal.pipeline.automatic_merges import JoinedClusters, find_merges
from promptcal.pipeline.calibrating import calibrate_result
from promptcal.pipeline.clustering import embed_all
from promptcal.pipeline.comparison import FirstResult, compare
from promptcal.pipeline.final_partition import final_partition
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.scoring import score_network, score_test, score_unlabelled
from promptcal.pipeline.session import Session, warn
from promptcal.pipeline.task import Task
from promptcal.pipeline.train import Trained
from promptcal.report.attention_panels import Examples
from promptcal.report.contact_sheets import write_contact_sheets
from promptcal.report.selection import MAX_IMAGES, choose_examples, select_images
from promptcal.report.thumbnails import make_thumbnails
from promptcal.run.assignments import Assignments, category_names
from promptcal.run.categories import AutomaticMerge, describe_categories
from promptcal.run.changes import CategoryLoss
from promptcal.run.directory import HeldOut
from promptcal.run.results import RunResults, Scores
from promptcal.runtime import files
from promptcal.runtime.free_memory import return_freed_memory
from promptcal.runtime.phases import CALIBRATION, REPORT
from promptcal.runtime.progress import show_progress, working

_MAX_TEXTS = 2000  # rows without pictures that a report shows
_LOSS_REMEDY = {  # by whether the images were kept
    True: "without --keep-confirmed they move",
    False: "look at them in the report's tab Changes; to keep them, fit again with --keep-confirmed",
}


@dataclass(frozen=True)
class Outcome:
    """A result of a fit, with ``n_classes`` categories. ``accuracy`` is None if the truth is unknown. ``losses``: see
    `FinalPartition`. ``merges``: of clusters that cannot be told apart; None if nothing was to be merged."""

    n_classes: int
    features: Tensor
    partition: Partition
    calibration: Calibration
    assignments: Assignments
    accuracy: Scores | None
    losses: list[CategoryLoss]
    merges: list[AutomaticMerge] | None


def finalize(trained: Trained, first: FirstResult | None, session: Session) -> None:
    """Assign every image. The result is written unless the first one, which is written already, is better."""
    prepared, results = trained.prepared, trained.results
    last_epoch: Scores | None = None
    if prepared.problem.can_be_scored:
        results, last_epoch = _score_stages(prepared, results, session)
    if prepared.stages:
        session.checkpoints.load_best(prepared.stages[-1], prepared.network)
    features = embed_all(prepared.network, prepared.view, len(prepared.problem.images), "embedding", session)
    outcome = assign(prepared, features, session)
    if outcome.accuracy is not None:
        results = _with_final_scores(prepared, results, outcome.accuracy, last_epoch)
    if first is not None:
        task = prepared.with_n_classes(outcome.n_classes)
        comparison = compare(task, first, features, outcome.partition.stability, session)
        results = results.model_copy(update={"comparison": comparison})
    if session.group.is_first:
        if first is not None and results.comparison is not None and results.comparison.kept == "first":
            _finish_with_first(first, results, session)
        else:
            write_result(prepared, outcome, results, session)


def keep_first_result(first: FirstResult, session: Session) -> None:
    """Finish the run with its first result, because nothing is trained."""
    results = session.directory.results()
    if session.group.is_first and results is not None:
        _finish_with_first(first, results, session)


def assign(task: Task, features: Tensor, session: Session) -> Outcome:
    """The category of each image by its embedding."""
    problem, assignment = task.problem, task.method.assignment(task.network)
    is_compared = compares_numbers(task, assignment)
    found = None if is_compared else find_merges(task, assignment, features, session)
    if found is not None:
        task = task.with_n_classes(found.n_left)
    task = task.with_n_classes(agreed_number(task, assignment, features, session))
    partition, losses = final_partition(task, assignment, features, session)
    return_freed_memory()
    merges = None if found is None else found.joined(partition)
    accuracy: Scores | None = None
    if task.test is not None:
        accuracy = score_test(task, task.test, task.network, assignment, "test features", session)
    elif problem.can_be_scored:
        accuracy = score_unlabelled(task, assignment, features, session, first=partition.clusters)
    calibration = _calibrate(task, assignment, features, partition, session)
    return_freed_memory()
    partition, names = _numbered(task, partition)
    ranked = rank_in_blocks(
        features,
        torch.from_numpy(partition.clusters),
        lambda block: torch.softmax(assignment.scores(block, partition) / calibration.temperature, dim=1),
    )
    assignments = Assignments.of(
        problem.images.names,
        ranked,
        names,
        [name in problem.classes for name in names],
        problem.labels >= 0,
        stability=partition.stability,
    )
    named = _named(merges, partition, names)
    return Outcome(task.config.n_classes, features, partition, calibration, assignments, accuracy, losses, merges=named)


def _named(merges: list[JoinedClusters] | None, partition: Partition, names: list[str]) -> list[AutomaticMerge] | None:
    """The merges with the names of the categories."""
    if merges is None:
        return None
    number = {int(column): i for i, column in enumerate(partition.columns)}
    return [
        AutomaticMerge(
            into=names[number[m.into]], images=m.images, connection=m.merge.connection, false_rate=m.merge.false_rate
        )
        for m in merges
    ]


def _score_stages(prepared: Prepared, results: RunResults, session: Session) -> tuple[RunResults, Scores | None]:
    """Score the best weights of each stage but the last, and the last epoch's weights (None if they are the best)."""
    stages = prepared.stages
    for name in stages[:-1]:
        session.checkpoints.load_best(name, prepared.network)
        results = _with_accuracy(results, name, score_network(prepared, f"{name} features", session))
    if not stages or results.stages[stages[-1]].kept_last_epoch:
        return results, None
    session.checkpoints.load_last_weights(prepared.network)
    return results, score_network(prepared, "features of the last epoch", session)


def _with_final_scores(
    prepared: Prepared, results: RunResults, selected: Scores, last_epoch: Scores | None
) -> RunResults:
    if prepared.stages:
        results = _with_accuracy(results, prepared.stages[-1], selected)
    return results.model_copy(update={"selected": selected, "last": last_epoch or selected})


def _with_accuracy(results: RunResults, stage: str, scores: Scores) -> RunResults:
    scored = results.stages[stage].model_copy(update={"accuracy": scores})
    return results.model_copy(update={"stages": {**results.stages, stage: scored}})


def _calibrate(
    task: Task, assignment: Assignment, features: Tensor, partition: Partition, session: Session
) -> Calibration:
    with session.clock.phase(CALIBRATION, session.device), working(session.console, "calibrating"):
        found = calibrate_result(
            assignment,
            features,
            partition,
            task.problem.labels,
            task.held_out,
            labels_in_centroids=assignment.labels_in_centroids,
        )
    if not found.n and task.problem.classes:
        warn("no label can be held out for calibration, so confidences are not calibrated")
    return found


def _numbered(task: Task, partition: Partition) -> tuple[Partition, list[str]]:
    """New clusters by size, or with the numbers and names of the previous run."""
    partition = partition.new_by_size(len(task.problem.classes))
    if task.previous is not None:
        return task.previous.renumber(partition, task.problem)
    return partition, category_names(task.problem.classes, len(partition.centroids))


def write_result(
    task: Task, outcome: Outcome, results: RunResults, session: Session, *, is_first: bool = False
) -> None:
    """Write a result: the first one, after which training begins, or the final one, which replaces it."""
    directory, assignments = session.directory, outcome.assignments
    if directory.info().has_result:  # not complete while its files are replaced
        directory.update_info(status="running")
    shutil.rmtree(directory.sheets_folder, ignore_errors=True)
    directory.report_file.unlink(missing_ok=True)
    files.write_safetensors(directory.model_file, task.network.state_dict())
    partition = outcome.partition
    files.write_safetensors(directory.centroids_file, partition.tensors())
    features = outcome.features.cpu().numpy()
    files.write_with(directory.embeddings_file, lambda temporary: _save_array(temporary, features))
    assignments.write_csv(directory.assignments_file)
    write_parquet_if_installed(directory.assignments_parquet_file, assignments.table())
    return_freed_memory()
    outcome.calibration.write(directory.calibration_file)
    _held_out(task).write(directory.held_out_file)
    former_names: list[str] = []
    if task.previous is not None:
        changes = task.previous.changes(assignments, outcome.losses)
        if not is_first:
            _warn_of_losses(outcome.losses)
        changes.write_table(directory.changes_file)
        summary = changes.summary()
        summary.write(directory.changes_summary_file)
        results = results.model_copy(update={"changes": summary})
        former_names = task.previous.former_names(assignments.names)
    with session.clock.phase(REPORT, session.device):
        if task.pictures is not None:
            write_contact_sheets(directory.sheets_folder, task.pictures, assignments)
        _write_report_inputs(task, assignments, session)
        with working(session.console, "describing the categories"):
            categories = describe_categories(assignments, outcome.features)
    categories.write_csv(directory.categories_file)
    checked = (
        directory.config_file,
        directory.model_file,
        directory.centroids_file,
        directory.embeddings_file,
        directory.assignments_file,
    )
    digests = {file.name: files.file_digest(file) for file in checked}
    update = {
        "categories": categories,
        "automatic_merges": outcome.merges,
        "weights": None if not is_first else "previous" if task.method.trains else "frozen",
        "stability": assignments.mean_stability,
    }
    results.model_copy(update=update).timed(session.clock.phases()).write(directory.results_file)
    directory.update_info(
        status="training" if is_first else "finished",
        is_frozen=is_first and not task.method.trains,
        categories=assignments.names,
        n_classes=len(assignments.names),
        former_names=former_names,
        sha256=digests,
    )


def _held_out(task: Task) -> HeldOut:
    held_out, unused = task.held_out >= 0, np.zeros(len(task.held_out), dtype=bool)
    if task.previous is not None and task.method.trains and not task.stages:
        unused = task.previous.unused_labels(task.problem) & ~held_out
    names = task.problem.images.names
    paths, others = ([names[i] for i in np.flatnonzero(mask)] for mask in (held_out, unused))
    return HeldOut(paths=paths, unused=others)


def _warn_of_losses(losses: list[CategoryLoss]) -> None:
    for loss in losses:
        warn(f"{loss.message()}; {_LOSS_REMEDY[loss.kept]}")


def _finish_with_first(first: FirstResult, results: RunResults, session: Session) -> None:
    """The first result is the final one; its files are complete."""
    kept = session.directory.with_first_result(results).model_copy(update={"selected": first.accuracy})
    if kept.changes is not None:
        _warn_of_losses(kept.changes.confirmed_losses)
    kept.timed(session.clock.phases()).write(session.directory.results_file)
    session.directory.report_file.unlink(missing_ok=True)  # it says that training is not finished
    session.directory.update_info(status="finished")


def _write_report_inputs(task: Task, assignments: Assignments, session: Session) -> None:
    """Thumbnails, a few examples as the network sees them, and the truth: a report needs no image folder."""
    directory, problem = session.directory, task.problem
    shown = select_images(assignments, MAX_IMAGES if task.pictures is not None else _MAX_TEXTS)
    with show_progress(session.console, "thumbnails", len(shown)) as show:
        thumbnails = make_thumbnails(problem.images, shown, show)
    thumbnails.write(directory.thumbnails_folder)
    chosen = choose_examples(assignments)
    views = task.example_views(chosen) if len(chosen) else None
    if views is not None:
        Examples.from_views(views[0], chosen, views[1]).write(directory.examples_file)
    if problem.truth is not None:
        directory.write_truth(problem.images.names, problem.truth)


def _save_array(path: Path, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array)
