"""`python -m examples.file_pipeline`: upload and every consumer in one process, until Ctrl-C."""

from __future__ import annotations

from redrive.cli import main

main(["up", "examples.file_pipeline:app"])
