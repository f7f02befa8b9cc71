"""`python -m promptcal`."""

from promptcal.cli import main

main()
