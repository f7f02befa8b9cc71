"""Running what a table lacks: one run after the other, where one that fails is noted and the others go on."""

import traceback
from collections.abc import Callable, Sequence

from promptcal.errors import Interrupted, PromptCALError
from promptcal.experiments.jobs import Job, RunOptions, State
from promptcal.runtime import files

FAILURES = "failures"  # folder with a traceback of each run that failed unforeseen


def states_of(jobs: Sequence[Job], where: RunOptions) -> dict[str, State]:
    return {job.name: job.state(where) for job in jobs}


def run_missing(
    jobs: Sequence[Job], where: RunOptions, say: Callable[[str], None] = lambda message: None
) -> dict[str, State]:
    """Run or resume every job that is neither finished nor impossible; the state of each afterwards.

    Ctrl-C stops the run at hand and everything after it, and leaves all of it to the next call.
    """
    states = states_of(jobs, where)
    to_do = [job for job in jobs if states[job.name].name in ("missing", "interrupted")]
    for number, job in enumerate(to_do, start=1):
        resuming = states[job.name].name == "interrupted"
        say(f"[{number}/{len(to_do)}] {'resuming ' if resuming else ''}{job.name}")
        where.output.mkdir(parents=True, exist_ok=True)
        try:
            job.run(where)
            states[job.name] = job.state(where)
        except (Interrupted, KeyboardInterrupt) as stopped:
            message = f"stopped in {job.name} ({number - 1} of {len(to_do)} runs done); run the same command to go on"
            raise Interrupted(message, getattr(stopped, "exit_code", 130)) from stopped
        except PromptCALError as error:
            states[job.name] = State("failed", str(error))
        except Exception as error:  # whatever it was, the other runs do not depend on it
            states[job.name] = State("failed", f"{_one_line(error)}; see {_keep_traceback(job, where)}")
        if states[job.name].name == "failed":
            say(f"  failed: {states[job.name].reason}")
    return states


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _keep_traceback(job: Job, where: RunOptions) -> str:
    folder = where.output / FAILURES
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{job.name}.txt"
    files.write_text(file, traceback.format_exc())
    return str(file)
