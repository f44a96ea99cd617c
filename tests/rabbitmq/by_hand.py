"""A plain client beside redrive, and redrive's command line in this process."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from redrive.cli import entry
from tests.conftest import PATIENCE
from tests.rabbit import Rabbit

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {"x-queue-type": "classic"}


def unlimited(rabbit: Rabbit) -> dict[str, Any]:
    """A quorum queue without a delivery limit, which 4.x has to be told."""
    return {**QUORUM, "x-delivery-limit": -1} if rabbit.major >= 4 else QUORUM


@dataclass(frozen=True)
class Message:
    """As a plain client gets it."""

    body: bytes
    properties: Any
    exchange: str
    routing_key: str
    redelivered: bool

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}


class Hands:
    """A plain client."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self.connection = connection
        self.channel: BlockingChannel = connection.channel()
        self.channel.confirm_delivery()

    def queue(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        self.channel.queue_declare(name, durable=True, arguments=dict(arguments or CLASSIC))
        return name

    def publish(self, queue: str, body: bytes, *, exchange: str = "", **properties: Any) -> None:
        """Confirmed and mandatory."""
        given = pika.BasicProperties(**{"delivery_mode": 2, **properties})
        self.channel.basic_publish(exchange, queue, body, given, mandatory=True)

    def ready(self, queue: str) -> int:
        count: int = self.channel.queue_declare(queue, passive=True).method.message_count
        return count

    def take(self, queue: str) -> Message | None:
        """Take the next one, and acknowledge it."""
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        if method is None:
            return None
        return Message(body, properties, method.exchange, method.routing_key, method.redelivered)

    def take_all(self, queue: str) -> list[Message]:
        found: list[Message] = []
        while (message := self.take(queue)) is not None:
            found.append(message)
        return found

    def wait_for(self, queue: str, count: int) -> None:
        """Until so many are ready there."""
        for _ in range(int(PATIENCE.total_seconds() * 20)):
            if self.ready(queue) == count:
                return
            self.connection.sleep(0.05)
        raise AssertionError(f"{queue} holds {self.ready(queue)} messages, not {count}")


@contextmanager
def hands_on(rabbit: Rabbit) -> Iterator[Hands]:
    """A plain client of the test's virtual host."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    try:
        yield Hands(connection)
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be exactly one JSON document."""
        assert self.out, self.err
        return json.loads(self.out)


class Shell:
    """The command line, in a folder of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    def run(self, *arguments: str) -> Ran:
        """Run one command to its end, in a thread of this process."""
        out, err = io.StringIO(), io.StringIO()
        with self._monkeypatch.context() as patch, ThreadPoolExecutor(1) as thread:
            for module in self.folder.glob("*.py"):
                sys.modules.pop(module.stem, None)
            patch.setattr(sys, "stdin", io.StringIO())
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = thread.submit(entry.run, arguments).result(PATIENCE.total_seconds() * 3)
        return Ran(code, out.getvalue(), err.getvalue())

    def dlq(self, verb: str, *arguments: str, on: Rabbit) -> Ran:
        """`redrive dlq …` in place on this broker."""
        return self.run("dlq", verb, *arguments, "--broker", on.url, "--management", on.management_url)
