"""The server that the tests of this folder share: the one of `REDRIVE_TEST_MONGODB`, else a FerretDB of this run."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from redrive.testing.servers.mongodb import MongoNode
from redrive.testing.servers.mongodb_install import installed_ferretdb

EXTERNAL = "REDRIVE_TEST_MONGODB"
_NODES: list[MongoNode] = []
"""What this process has started; it ends with it."""


def ferretdb() -> Path:
    """The program; fails or skips where it is not there."""
    found = installed_ferretdb()
    if found is not None:
        return found
    missing = "FerretDB is not on this machine. With Go, run: python -m redrive.testing.servers"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def server_url() -> str:
    """The URL of the shared server, without a database."""
    external = os.environ.get(EXTERNAL)
    if external:
        return external.rstrip("/")
    if not _NODES:
        node = MongoNode(ferretdb())
        node.start()
        _NODES.append(node)
    return _NODES[0].url


def database_url(server: str | None = None) -> str:
    """A URL of a database that nobody else uses."""
    return f"{server_url() if server is None else server}/redrive_{secrets.token_hex(6)}"
