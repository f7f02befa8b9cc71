"""`python -m promptcal`."""

from promptcal.cli.main import main

main()
