"""The command line. Nothing heavy is imported before a command runs."""


def main() -> None:
    """Entry point of the command `promptcal`."""
    from promptcal.cli.app import run

    run()
