"""Structured logs: one line per event, JSON for machines, coloured text for a person at a terminal.

A line starts with `timestamp` (RFC 3339, UTC), `level`, `message` (a constant per event), `event` (its
name) and `system` (the app), followed by the event's fields in the order of the table in `events.py`. No value is ever
formatted into a text, so that every line can be searched by field. Secrets are masked. A field that cannot be shown
is named by its class; a stream that cannot be written loses the line, never the delivery.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, Literal, TextIO, TypeAlias

import structlog

from redrive.core.units import UnixMs, rfc3339
from redrive.runtime.clean import plain, printable
from redrive.runtime.events import Event, Events, Level, Subscriber

Style: TypeAlias = Literal["auto", "json", "console"]

_RANK: Final = {Level.DEBUG: 0, Level.INFO: 1, Level.WARN: 2, Level.ERROR: 3}
_METHOD: Final = {Level.DEBUG: "debug", Level.INFO: "info", Level.WARN: "warning", Level.ERROR: "error"}
_HEAD: Final = ("timestamp", "level", "message", "event", "system")


def _wall_ms() -> UnixMs:
    return time.time_ns() // 1_000_000


def start(
    events: Events,
    *,
    system: str,
    stream: TextIO | None = None,
    style: Style = "auto",
    level: Level = Level.INFO,
    now: Callable[[], UnixMs] = _wall_ms,
) -> Subscriber:
    """Subscribe a log to `events`, on standard error unless `stream` is given; returns the subscriber.

    `style` "auto" writes for a person when the stream is a terminal, else one JSON object a line. Events below
    `level` cost one comparison.
    """
    target = sys.stderr if stream is None else stream
    log = _logger(target, is_console=style == "console" or (style == "auto" and target.isatty()))
    least = _RANK[level]

    def write(event: Event) -> None:
        row = event.type
        if _RANK[row.level] < least:
            return
        line = {"timestamp": rfc3339(now()), "level": str(row.level), "message": row.text, "event": event.name}
        getattr(log, _METHOD[row.level])(row.text, line={**line, "system": system}, fields=_ordered(event))

    events.subscribe(write)
    return write


def take_in_library_logs(*, system: str, stream: TextIO | None = None, style: Style = "auto") -> None:
    """Write what libraries log through the standard `logging`, from warnings up, in the same form: with the event
    `library.log`, the logger's name and the traceback as a field. Where the app has set up `logging` itself, nothing
    is changed.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    target = sys.stderr if stream is None else stream
    is_console = style == "console" or (style == "auto" and target.isatty())
    root.addHandler(_LibraryLogs(_logger(target, is_console=is_console), system))


class _LibraryLogs(logging.Handler):
    def __init__(self, log: Any, system: str) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._system = system

    def emit(self, record: logging.LogRecord) -> None:
        level = Level.ERROR if record.levelno >= logging.ERROR else Level.WARN
        with suppress(Exception):  # a log that cannot be written must not end what was logged
            fields = {"logger": record.name, "text": plain(record.getMessage())}
            if record.exc_info:
                fields["traceback"] = plain(logging.Formatter().formatException(record.exc_info))
            at = rfc3339(int(record.created * 1_000))
            head = {"timestamp": at, "level": str(level), "message": "A library logged", "event": "library.log"}
            line = {**head, "system": self._system}
            getattr(self._log, _METHOD[level])(head["message"], line=line, fields=fields)


def _ordered(event: Event) -> dict[str, Any]:
    """The event's fields as JSON values: those of the table first and in its order, then any others."""
    known = [name for name in event.type.fields if name in event.fields]
    others = [name for name in event.fields if name not in event.type.fields]
    return {name: plain(event.fields[name], name=name) for name in (*known, *others)}


def _logger(stream: TextIO, *, is_console: bool) -> Any:
    render = (
        (_console_fields, structlog.dev.ConsoleRenderer(colors=_has_colors(stream)))
        if is_console
        else (
            _json_fields,
            structlog.processors.JSONRenderer(serializer=_to_json),
        )
    )
    return structlog.wrap_logger(
        structlog.PrintLogger(stream), processors=list(render), wrapper_class=structlog.BoundLogger, context_class=dict
    )


def _has_colors(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ


def _json_fields(_logger: object, _name: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    fields = {name if name not in _HEAD else f"{name}_": value for name, value in event_dict["fields"].items()}
    return {**event_dict["line"], **fields}


def _console_fields(_logger: object, _name: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What structlog's console renderer expects; absent values are left out, control characters made visible."""
    line, fields = event_dict["line"], event_dict["fields"]
    shown = {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}
    reserved = {"event", "level", "timestamp", "exception", "exc_info", "stack"}
    return {
        "timestamp": line["timestamp"],
        "level": line["level"],
        "event": line["message"],
        **{f"{name}_" if name in reserved else name: value for name, value in shown.items() if value is not None},
    }


def _to_json(line: MutableMapping[str, Any], **_unused: object) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
