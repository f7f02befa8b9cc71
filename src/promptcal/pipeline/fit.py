"""A fit from top to bottom: read the inputs, prepare, write a first result, train, finalize."""

from dataclasses import replace
from typing import Literal

from rich.console import Console

from promptcal.pipeline.apply_names import drop_names_of_first_result
from promptcal.pipeline.finalize import finalize, keep_first_result
from promptcal.pipeline.first_result import make_first_result
from promptcal.pipeline.inputs import read_inputs
from promptcal.pipeline.prepare import prepare
from promptcal.pipeline.request import FitRequest
from promptcal.pipeline.session import Session, say, warn
from promptcal.pipeline.time_limit import Consent
from promptcal.pipeline.train import train
from promptcal.run.directory import RunDirectory
from promptcal.run.inference import Run
from promptcal.runtime import distributed
from promptcal.runtime.device import explain_memory_errors
from promptcal.runtime.phases import START_UP, PhaseClock


@distributed.distributed_entry_point
@explain_memory_errors()
def run_fit(request: FitRequest) -> Run:
    """Learn the categories of the request's images and write a run directory."""
    group, directory = distributed.group(), RunDirectory(request.output)
    restarts = group.all_reduce_max(distributed.restarts())  # which may differ by machine
    begun = group.on_first(lambda: _begun_by_this_launch(restarts, directory, request.overwrite))
    if begun == "running":
        request = replace(request, resume=True, overwrite=False)
    if begun != "finished":
        clock = PhaseClock()
        console = Console(stderr=True, quiet=not (request.progress and group.is_first))
        inputs = read_inputs(request, directory, console)
        draft = inputs.settings.draft(len(inputs.problem.classes))
        session = Session(
            directory, draft, console, clock=clock, stop_after=request.stop_after, verbose=request.verbose
        )
        with session.active():
            is_resumed = group.on_first(
                lambda: directory.check_free(resume=request.resume, overwrite=request.overwrite)
            )
            if request.resume and not is_resumed:
                warn(f"the run in {directory.path} was stopped before it began, so it starts from the beginning")
            with clock.phase(START_UP, session.device):
                prepared = prepare(replace(inputs, resume=is_resumed), session)
            if is_resumed and group.on_first(lambda: drop_names_of_first_result(directory)):
                warn(
                    f"the names that were applied to the first result of {directory.path} are dropped, because "
                    "training replaces it; apply the label file again when the fit has ended"
                )
            if request.quick:
                say(
                    "No network is trained (--quick): fit without --quick to adapt the backbone to these images",
                    session,
                )
            first = make_first_result(prepared, session, report=request.report) if request.first_result else None
            trained = train(prepared, Consent(request.allow_long, request.confirm), session)
            if trained is not None:
                finalize(trained, first, session)
            elif first is not None:
                keep_first_result(first, session)
    return group.on_first(lambda: Run(request.output, request.device))


def _begun_by_this_launch(
    restarts: int, directory: RunDirectory, overwrite: bool
) -> Literal["running", "finished"] | None:
    """The status of the run in the directory, if this launch of torchrun began it; None otherwise.

    If another machine joins, torchrun starts the processes again without counting it as a restart.
    """
    if distributed.launch() is None or (overwrite and not restarts) or not directory.exists():
        return None
    info = directory.info()
    if info.launch != distributed.launch() or (info.status == "finished" and not restarts):
        return None
    finished = info.status == "finished"
    state = "is finished" if finished else "continues from its last checkpoint, as with --resume"
    warn(f"restarted by torchrun (restart {restarts}): the run in {directory.path} {state}")
    return "finished" if finished else "running"
