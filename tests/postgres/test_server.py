"""A private PostgreSQL starts, loses nothing to kill -9, and goes with its folder and with its owner."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from redrive.testing.servers.postgres import PostgresNode, ask
from tests.postgres_server import install


def test_what_was_committed_survives_kill_nine(postgres_alone: PostgresNode) -> None:
    with postgres_alone.database() as url:
        ask(url, "CREATE TABLE kept (n int)")
        ask(url, "INSERT INTO kept VALUES (7)")

        postgres_alone.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url, connect_timeout=2)
        postgres_alone.start()

        assert [(7,)] == ask(url, "SELECT n FROM kept")


def test_each_test_gets_an_empty_database(postgres: str) -> None:
    assert [(0,)] == ask(postgres, "SELECT count(*)::int FROM pg_tables WHERE schemaname = 'public'")


def ask_for_ever(connection: psycopg.Connection) -> None:
    while True:
        connection.execute("SELECT 1")


def test_a_node_goes_with_its_owner() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        node = PostgresNode(install(), owner=owner.pid)
        node.start()
        with psycopg.connect(node.url) as connection:
            owner.kill()
            owner.wait()

            with pytest.raises(psycopg.OperationalError):
                ask_for_ever(connection)
    node.close()
