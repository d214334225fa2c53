"""`python -m elmofire` is the command `elmofire`."""

from elmofire.cli import main

main()
