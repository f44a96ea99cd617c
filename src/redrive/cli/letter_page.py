"""One letter as a page of text."""

from __future__ import annotations

import json
from typing import Any, Final

from redrive.cli.output import facts, say, table

MAX_BODY_CHARS: Final = 8_000
HEX_PER_LINE: Final = 32


def print_letter(letter: dict[str, Any]) -> None:
    """Print the document of a letter for a person."""
    message = letter["message"]
    facts(
        [
            ("letter", letter["id"]),
            ("state", letter["state"]),
            ("reason", f"{letter['reason_code']}: {letter['reason_text']}"),
            ("queue", f"{letter['queue']} (dead letters: {letter['dead_letter_queue']})"),
            ("group", _joined(letter["group"], letter["group_title"])),
            ("attempts", letter["attempt_count"]),
            ("app version", letter["version"]),
            ("first failed", letter["first_failed_at"]),
            ("dead since", letter["dead_lettered_at"]),
            ("may go", letter["expires_at"]),
            ("redriven", letter["redrive_count"] or None),
            ("earlier letter", letter["previous"]),
            ("held by job", letter["outstanding_job"]),
            ("message", message["id"]),
            ("key", message["key"]),
            ("tenant", message["tenant"]),
            ("type", message["properties"].get("type")),
            ("trace", message["properties"].get("trace_id")),
            ("published", message["published_at"]),
        ]
    )
    _print_history(letter["history"])
    _print_headers(message)
    _print_body(message)
    if letter["audit"]:
        _section("What people did")
        table(
            ("when", "who", "what", "note"),
            [(entry["at"], entry["actor"], entry["action"], entry["note"]) for entry in letter["audit"]],
        )


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)


def _section(title: str) -> None:
    say(f"\n{title}")


def _print_history(history: list[dict[str, Any]]) -> None:
    if not history:
        return
    _section("Attempts")
    table(
        ("#", "when", "outcome", "took", "error", "text", "next"),
        [
            (
                entry["attempt"],
                entry["at"],
                entry["outcome"],
                _ms(entry["duration_ms"]),
                entry["error_code"] or entry["error_type"],
                entry["error_text"],
                _ms(entry["next_delay_ms"]),
            )
            for entry in history
        ],
        right=("#", "took", "next"),
    )
    last = history[-1]["traceback"]
    if last:
        _section("Traceback of the last attempt")
        say(last.rstrip())


def _ms(value: int | None) -> str | None:
    return None if value is None else f"{value} ms"


def _print_headers(message: dict[str, Any]) -> None:
    headers = message["headers"]
    if headers:
        _section("Headers")
        facts([(name, json.dumps(value, ensure_ascii=False)) for name, value in headers.items()])


def _print_body(message: dict[str, Any]) -> None:
    _section(f"Body ({message['content_type'] or 'no content type'}, {message['body_bytes']} bytes)")
    body = message["body"]
    if isinstance(body, dict):
        _print_bytes(body["$bytes"])
        return
    text = _pretty(body)
    say(text[:MAX_BODY_CHARS])
    if len(text) > MAX_BODY_CHARS:
        say(f"… {len(text) - MAX_BODY_CHARS} more characters; --json has them all.")


def _pretty(body: str) -> str:
    """JSON indented for reading, every number and name as it was written; anything else as it is."""
    import msgspec

    try:
        return msgspec.json.format(body, indent=2)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body


def _print_bytes(encoded: str) -> None:
    import base64

    raw = base64.b64decode(encoded)
    shown = raw[: MAX_BODY_CHARS // 3]
    for start in range(0, len(shown), HEX_PER_LINE):
        say(shown[start : start + HEX_PER_LINE].hex(" "))
    if len(raw) > len(shown):
        say(f"… {len(raw) - len(shown)} more bytes; --json has them all.")
