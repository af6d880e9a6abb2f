"""`python -m dphead`."""

from dphead.cli import main

main()
