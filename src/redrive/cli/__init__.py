"""The command line. It translates: options to a service call, the result to a table or to JSON.

Exit codes: 0 all of it worked, 1 something failed or was refused, 2 the command or the configuration is wrong,
70 something nobody foresaw (an output on a full disk among it), 130 interrupted. With `--json` standard output holds
one JSON document and nothing else; errors are one JSON object on standard error: {"error": {"code", "text", "hint"}}.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit. `arguments` None: those of the process."""
    from redrive.cli.entry import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
