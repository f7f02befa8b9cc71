"""Run what a table lacks, one run after the other. A run that fails does not stop the others."""

import traceback
from collections.abc import Callable, Sequence

from promptcal.errors import Interrupted, PromptCALError
from promptcal.experiments.jobs import Job, RunOptions, State
from promptcal.runtime import files

FAILURES = "failures"  # folder with the traceback of each unexpected failure


def states_of(jobs: Sequence[Job], options: RunOptions) -> dict[str, State]:
    return {job.name: job.state(options) for job in jobs}


def run_missing(
    jobs: Sequence[Job], options: RunOptions, report: Callable[[str], None] = lambda message: None
) -> dict[str, State]:
    """Run or resume every job that is missing or interrupted; returns the state of each job afterwards.

    Ctrl-C stops the current run and skips the rest. The next call continues there.
    """
    states = states_of(jobs, options)
    to_do = [job for job in jobs if states[job.name].name in ("missing", "interrupted")]
    for number, job in enumerate(to_do, start=1):
        resuming = states[job.name].name == "interrupted"
        report(f"[{number}/{len(to_do)}] {'resuming ' if resuming else ''}{job.name}")
        options.output.mkdir(parents=True, exist_ok=True)
        try:
            job.run(options)
            states[job.name] = job.state(options)
        except (Interrupted, KeyboardInterrupt) as stopped:
            message = (
                f"stopped in {job.name} ({number - 1} of {len(to_do)} runs done); run the same command to continue"
            )
            raise Interrupted(message, getattr(stopped, "exit_code", 130)) from stopped
        except PromptCALError as error:
            states[job.name] = State("failed", str(error))
        except Exception as error:  # the other runs do not depend on this one
            states[job.name] = State("failed", f"{_one_line(error)}; see {_write_traceback(job, options)}")
        if states[job.name].name == "failed":
            report(f"  failed: {states[job.name].reason}")
    return states


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _write_traceback(job: Job, options: RunOptions) -> str:
    folder = options.output / FAILURES
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{job.name}.txt"
    files.write_text(file, traceback.format_exc())
    return str(file)
