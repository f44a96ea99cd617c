"""`python -m examples.freeflow`: all seven domains in one process, until Ctrl-C."""

from __future__ import annotations

import sys

from redrive.runtime import logs

from . import app

logs.start(app.events, system=app.name)
sys.exit(app.worker().main())
