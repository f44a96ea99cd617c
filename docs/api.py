"""The page on the admin API, from its table of operations."""

from __future__ import annotations

from typing import Final

from redrive.web.admin.openapi import document
from redrive.web.admin.operations import OPERATIONS, Operation
from redrive.web.admin.problems import CODES, PROBLEM_TYPE, STATUS_OF

INTRO: Final = """\
Served by `redrive serve`, and mountable in any ASGI app (see [The admin API](../how-to/admin-api.md)). `/openapi.json`
has the same as OpenAPI 3.1, with the schemas. A role may do what those before it may: viewer, operator, admin. Instants
are RFC 3339, durations whole milliseconds. A parameter or field nobody knows is refused.
OPTIONS of any path answers 204, without a token; a method that a path does not have, HEAD among them, 405. Both name
its methods in `Allow`.
"""

PROBLEMS: Final = f"""\
Every refusal is `application/problem+json` (RFC 9457) with `type`, `title`, `status` and `detail`. `type` is
`{PROBLEM_TYPE}` and a code: one of these, or that of an [error](errors.md).
"""


def page() -> str:
    """The text of `docs/reference/api.md`."""
    parts = ["# Admin API", INTRO.rstrip(), "## Operations"]
    parts.append(_table(("operation", "role", "what it does"), [_row(row) for row in OPERATIONS]))
    takes = [(f"`{row.method} {row.path}`", _names(row)) for row in OPERATIONS if _fields(row)]
    parts += ["## What each takes", _table(("operation", "parameters, or fields of the body"), takes)]
    codes = [(f"`{code}`", str(status), text) for code, (status, text) in CODES.items()]
    errors = [(f"`{kind.code}`", str(status), f"[{kind.__name__}](errors.md)") for kind, status in STATUS_OF.items()]
    parts += ["## Problems", PROBLEMS.rstrip(), _table(("code", "status", "meaning"), [*codes, *errors])]
    return "\n\n".join(parts) + "\n"


def _row(row: Operation) -> tuple[str, ...]:
    return f"`{row.method} {row.path}`", str(row.role), row.summary


def _names(row: Operation) -> str:
    return ", ".join(f"`{name}`" for name in _fields(row))


def _fields(row: Operation) -> list[str]:
    schemas = document()["components"]["schemas"]
    kind = row.query if row.body is None else row.body
    return list(schemas[kind.__name__]["properties"])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
