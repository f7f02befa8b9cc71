"""The command line. Nothing heavy is imported before a command runs."""


def main() -> None:
    """Entry point of the command `promptcal`."""
    from promptcal.runtime.interrupts import StopRequest, run_program

    def program(stop: StopRequest) -> None:
        from promptcal.runtime.streams import open_closed_streams

        open_closed_streams()
        from promptcal.cli.app import run

        run(stop)

    run_program(program)
