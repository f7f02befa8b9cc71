"""Named errors. Each carries one sentence that names the thing and the remedy; the command line exits with 2."""


class PromptCALError(Exception):
    """Anything the user can mend."""

    already_reported: bool | None = None  # by another process of the same run; None: not asked yet


class ConfigError(PromptCALError):
    """A setting is unknown, of the wrong type, or at odds with another."""


class DataError(PromptCALError):
    """Images are missing, unreadable or too few."""


class LabelError(PromptCALError):
    """A label file does not fit the images or the number of classes."""


class WeightsError(PromptCALError):
    """A backbone is not a ViT, or a weight file does not fit it."""


class RunError(PromptCALError):
    """A run directory is missing, unfinished, finished already, or of another run."""


class TrainingError(PromptCALError):
    """Training went astray."""


class LostProcessError(PromptCALError):
    """Of several processes that share a run, another one ended or was never there."""


class PromptCALWarning(UserWarning):
    """Something the user should know that does not stop the run."""


class Interrupted(Exception):
    """The user asked to stop; a checkpoint has been written."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code
