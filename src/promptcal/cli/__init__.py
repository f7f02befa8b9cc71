"""The command line. Nothing heavy is imported before a command runs."""


def main() -> None:
    """Entry point of the command `promptcal`."""
    from promptcal.runtime.streams import open_closed_streams

    open_closed_streams()
    from promptcal.cli.app import run

    run()
