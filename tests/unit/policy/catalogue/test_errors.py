"""The rows of the catalogues: they name real classes where the library is here, and say where they come from."""

from __future__ import annotations

import importlib
import re

from redrive.core.policy.catalogue import errors, grpc, ses, system
from redrive.core.policy.failure import Entry, FailureKind

EVERY_ROW = {
    **errors.BY_NAME, **errors.BY_BARE_NAME, **system.BY_ERRNO_NAME, **grpc.BY_STATUS_NAME, **ses.BY_CODE,
}  # fmt: skip
MODULES = {
    "builtins": ["builtins"], "asyncio": ["asyncio"], "concurrent": ["concurrent.futures"], "http": ["http.client"],
    "json": ["json"], "socket": ["socket"], "ssl": ["ssl"], "sqlite3": ["sqlite3"], "urllib": ["urllib.error"],
    "smtplib": ["smtplib"], "xml": ["xml.etree.ElementTree"], "httpx": ["httpx"], "httpcore": ["httpcore"],
    "msgspec": ["msgspec"], "pydantic": ["pydantic"], "pydantic_core": ["pydantic_core"], "anyio": ["anyio"],
}  # fmt: skip
"""The libraries that are here, standard ones and those the tests need anyway."""


def test_a_row_of_a_library_that_is_here_names_an_error_of_it() -> None:
    for name in errors.BY_NAME:
        library, _, qualname = name.partition(".")
        for module in MODULES.get(library, ()):
            assert issubclass(getattr(importlib.import_module(module), qualname), BaseException), name


def test_every_row_says_what_and_where_from() -> None:
    for name, row in EVERY_ROW.items():
        assert isinstance(row, Entry), name
        assert row.source.strip(), name
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", row.code), name


def test_every_timeout_has_the_code_timeout() -> None:
    for name, row in errors.BY_NAME.items():
        if re.search("timeout", name, re.IGNORECASE):
            assert (FailureKind.TRANSIENT, "TIMEOUT") == (row.kind, row.code), name


def test_what_every_team_calls_validation_is_permanent() -> None:
    assert {FailureKind.PERMANENT} == {row.kind for row in errors.BY_BARE_NAME.values()}
