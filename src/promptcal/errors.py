"""Errors and warnings. A message is one sentence: what is wrong; what to do. The command line exits with 2."""

import re

_LONGEST_MESSAGE = 2000  # characters


def one_line(text: object) -> str:
    """A message without line ends and other control characters, which names and other programs' messages can have."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", str(text))


def shorten(text: object, longest: int = 80) -> str:
    """A text that is quoted in a message: without its middle if it is too long.

    >>> shorten("a" * 100, 20)
    'aaaaaaaaaa ... aaaaa'
    """
    try:
        quoted = str(text)
    except ValueError:  # Python writes no number of over 4,300 digits
        quoted = f"a {type(text).__name__} that cannot be written"
    if len(quoted) <= longest:
        return quoted
    end = (longest - 5) // 3
    return f"{quoted[: longest - 5 - end]} ... {quoted[-end:]}"


def has_cause(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an error is of a kind, or was raised while one of that kind was handled."""
    while error is not None and not isinstance(error, kind):
        error = error.__context__
    return error is not None


class PromptCALError(Exception):
    """Any error that the user can fix."""

    already_reported: bool | None = None  # by another process of the same run; None: not known yet
    exit_code: int = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(shorten(one_line(message), _LONGEST_MESSAGE))


class ConfigError(PromptCALError):
    """A setting or option is unknown, has a wrong value, or contradicts another."""


class ArgumentError(ConfigError, TypeError, ValueError):
    """An argument of a Python function is missing, unknown or of a wrong type."""


class DataError(PromptCALError):
    """Images are missing, unreadable or too few."""


class LabelError(PromptCALError):
    """Labels do not fit the images or the number of classes."""


class WeightsError(PromptCALError):
    """A backbone is not a ViT, or a weight file does not fit it."""


class RunError(PromptCALError):
    """A run directory is missing, damaged, in the wrong state, or does not fit the command."""


class TrainingError(PromptCALError):
    """Training diverged."""


class LostProcessError(PromptCALError):
    """Another process of a distributed run ended or did not start."""


class TryAgainError(PromptCALError):
    """Work is left that the same command continues: a worker was killed, a disk is full (75, EX_TEMPFAIL)."""

    exit_code = 75


class MissingPackageError(PromptCALError, ImportError):
    """An optional package is not installed."""


class PromptCALWarning(UserWarning):
    """Something the user should know that does not stop the run."""


class Interrupted(Exception):
    """The user asked to stop; a checkpoint has been written."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code
