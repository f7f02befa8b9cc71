"""Step 3 of a fit: assign every image with the selected weights, calibrate, and write the results."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.calibration import Calibration, calibrate_run
from promptcal.discovery.partition import Partition, rank_clusters
from promptcal.exporters.table_files import write_parquet_if_installed
from promptcal.methods.assignment import Assignment
from promptcal.pipeline.clustering import embed_all
from promptcal.pipeline.final_partition import final_partition
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.scoring import score_network, score_unlabelled
from promptcal.pipeline.session import Session, warn
from promptcal.pipeline.train import Trained
from promptcal.report.attention_panels import Examples
from promptcal.report.contact_sheets import write_contact_sheets
from promptcal.report.selection import choose_examples, select_images
from promptcal.report.thumbnails import make_thumbnails
from promptcal.run.assignments import Assignments, category_names
from promptcal.run.changes import CategoryLoss
from promptcal.run.directory import HeldOut
from promptcal.run.results import RunResults, Scores
from promptcal.runtime import files
from promptcal.runtime.progress import progress_bar

_LOSS_REMEDY = {  # by whether the images were kept
    True: "without --keep-confirmed they move",
    False: "look at them in the report's tab Changes; to keep them, fit again with --keep-confirmed",
}


@dataclass(frozen=True)
class Outcome:
    """The end result of a fit."""

    features: Tensor
    partition: Partition
    calibration: Calibration
    assignments: Assignments
    results: RunResults
    losses: list[CategoryLoss]


def finalize(trained: Trained, session: Session) -> None:
    outcome = _assign(trained, session)
    if session.group.is_first:
        _write(trained.prepared, outcome, session)


def _assign(trained: Trained, session: Session) -> Outcome:
    prepared, results = trained.prepared, trained.results
    problem, network, stages = prepared.problem, prepared.network, prepared.stages
    last_epoch: Scores | None = None
    if problem.can_be_scored:
        results, last_epoch = _score_stages(prepared, results, session)
    if stages:
        session.checkpoints.load_best(stages[-1], network)
    assignment = prepared.method.assignment(network)
    features = embed_all(network, prepared.view, len(problem.images), "embedding", session)
    partition, losses = final_partition(prepared, assignment, features, session)
    if problem.can_be_scored:
        if prepared.test is None:
            selected = score_unlabelled(prepared, assignment, features, session, first=partition.clusters)
        else:
            selected = score_network(prepared, "test features", session)
        results = _with_final_scores(prepared, results, selected, last_epoch)
    calibration = _calibrate(prepared, assignment, features, partition)
    partition, names = _numbered(prepared, partition)
    scores = assignment.scores(features, partition.centroids, partition.columns)
    probabilities = torch.softmax(scores / calibration.temperature, dim=1)
    ranked = rank_clusters(probabilities, torch.from_numpy(partition.clusters))
    assignments = Assignments(
        problem.images.names,
        ranked.clusters,
        ranked.confidence,
        names,
        [name in problem.classes for name in names],
        problem.labels >= 0,
        ranked.second,
        ranked.second_confidence,
    )
    return Outcome(features, partition, calibration, assignments, results, losses)


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


def _calibrate(prepared: Prepared, assignment: Assignment, features: Tensor, partition: Partition) -> Calibration:
    found = calibrate_run(
        features,
        partition,
        prepared.problem.labels,
        prepared.held_out,
        outputs=assignment.outputs(features, partition.columns),
        labels_in_centroids=assignment.labels_in_centroids,
        temperature=assignment.temperature,
    )
    if not found.n and prepared.problem.classes:
        warn("no label can be held out for calibration, so confidences are not calibrated")
    return found


def _numbered(prepared: Prepared, partition: Partition) -> tuple[Partition, list[str]]:
    """New clusters by size, or with the numbers and names of the previous run."""
    partition = partition.new_by_size(len(prepared.problem.classes))
    if prepared.previous is not None:
        return prepared.previous.renumber(partition, prepared.problem)
    return partition, category_names(prepared.problem.classes, prepared.config.n_classes)


def _write(prepared: Prepared, outcome: Outcome, session: Session) -> None:
    directory, assignments, results = session.directory, outcome.assignments, outcome.results
    files.write_safetensors(directory.model_file, prepared.network.state_dict())
    partition = outcome.partition
    files.write_safetensors(directory.centroids_file, {"centroids": partition.centroids, "columns": partition.columns})
    features = outcome.features.cpu().numpy()
    files.write_with(directory.embeddings_file, lambda temporary: _save_array(temporary, features))
    files.write_text(directory.assignments_file, assignments.to_csv())
    write_parquet_if_installed(directory.assignments_parquet_file, assignments.table())
    outcome.calibration.write(directory.calibration_file)
    held_out = [name for name, label in zip(assignments.paths, prepared.held_out, strict=True) if label >= 0]
    HeldOut(paths=held_out).write(directory.held_out_file)
    former_names: list[str] = []
    if prepared.previous is not None:
        changes = prepared.previous.changes(assignments, outcome.losses)
        for loss in outcome.losses:
            warn(f"{loss.message()}; {_LOSS_REMEDY[loss.kept]}")
        changes.write_table(directory.changes_file)
        summary = changes.summary()
        summary.write(directory.changes_summary_file)
        results = results.model_copy(update={"changes": summary})
        former_names = prepared.previous.former_names(assignments.names)
    write_contact_sheets(directory.sheets_folder, prepared.store, assignments)
    _write_report_inputs(prepared, assignments, session)
    results.model_copy(update={"seconds": round(session.clock.elapsed(), 1)}).write(directory.results_file)
    checked = (
        directory.config_file,
        directory.model_file,
        directory.centroids_file,
        directory.embeddings_file,
        directory.assignments_file,
    )
    directory.update_info(
        status="finished",
        categories=assignments.names,
        former_names=former_names,
        sha256={file.name: files.file_digest(file) for file in checked},
    )


def _write_report_inputs(prepared: Prepared, assignments: Assignments, session: Session) -> None:
    """Thumbnails, a few examples as the network sees them, and the truth: a report needs no image folder."""
    directory, problem, shown = session.directory, prepared.problem, select_images(assignments)
    with progress_bar(session.console) as bar:
        task = bar.add_task("thumbnails", total=len(shown), note="")
        thumbnails = make_thumbnails(problem.images, shown, lambda done: bar.update(task, completed=done))
    thumbnails.write(directory.thumbnails_folder)
    chosen = choose_examples(assignments)
    if len(chosen):
        views = next(iter(prepared.view.centres(torch.from_numpy(chosen), len(chosen))))
        Examples.from_views(views, chosen, prepared.view.normalise).write(directory.examples_file)
    if problem.truth is not None:
        directory.write_truth(problem.images.names, problem.truth)


def _save_array(path: Path, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array)
