"""`python -m redrive.cli`: the same as `redrive`, by the interpreter that runs now. What a supervisor starts."""

from redrive.cli import main

main()
