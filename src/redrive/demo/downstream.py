"""The service behind the worker, which really fails: by refusing, hanging, answering garbage, 500 or 422.

Its port is bound from the beginning but not listened on, so that connections to it are refused (and nobody else can
take the port) until `open` lets it listen.
"""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

HANG_S: Final = 30.0
"""Longer than any client of the demo waits; the handler also ends when the service closes."""


class Mood(StrEnum):
    """How the service treats one event."""

    WELL = "takes it"
    HANG = "does not answer"
    GARBAGE = "answers garbage"
    BROKEN = "answers 500"
    PICKY = "answers 422"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request that came in."""

    event_id: str
    attempt: int
    mood: Mood


class FlakyService:
    """An HTTP server on loopback. `moods` says how it treats which event; others are taken. Thread-safe."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._moods: dict[str, Mood] = {}
        self._visits: list[Visit] = []
        self._closing = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where the worker posts to."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/events"

    @property
    def visits(self) -> tuple[Visit, ...]:
        """Every request so far."""
        with self._lock:
            return tuple(self._visits)

    def taken(self) -> list[str]:
        """Ids of the events it took, in order, a repeat twice."""
        return [visit.event_id for visit in self.visits if visit.mood is Mood.WELL]

    def treat(self, moods: dict[str, Mood]) -> None:
        """From now on, treat these events so."""
        with self._lock:
            self._moods.update(moods)

    def mend(self) -> None:
        """The fix: everything is taken from now on."""
        with self._lock:
            self._moods.clear()

    def open(self) -> None:
        """Listen: connections are no longer refused."""
        server = _Server(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = self._socket
        server.server_address = self._socket.getsockname()
        server.service = self
        server.server_activate()
        self._server = server
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        """Stop at once; requests that hang are let go."""
        self._closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._socket.close()

    def greet(self, event_id: str, attempt: int) -> Mood:
        """Note a visit; how it is to be treated."""
        with self._lock:
            mood = self._moods.get(event_id, Mood.WELL)
            self._visits.append(Visit(event_id=event_id, attempt=attempt, mood=mood))
            return mood

    def hang(self) -> None:
        """Keep a visitor waiting."""
        self._closing.wait(HANG_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    service: FlakyService


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Take one event, or fail at it in the way its mood says."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        service = self.server.service
        mood = service.greet(_event_id(body), int(self.headers.get("X-Attempt", "0")))
        match mood:
            case Mood.HANG:
                service.hang()
            case Mood.GARBAGE:
                self.wfile.write(b"\x00\xff<<< not an answer >>>\n\n")
            case Mood.BROKEN:
                self._answer(500, "disk full")
            case Mood.PICKY:
                self._answer(422, "unknown shipment")
            case _:
                self._answer(200, "taken")
        self.close_connection = True

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parameter http.server names so
        """Say nothing: the telling is done elsewhere."""


def _event_id(body: bytes) -> str:
    try:
        return str(json.loads(body)["eventId"])
    except (ValueError, KeyError, TypeError):
        return "?"
