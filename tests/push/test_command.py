"""`redrive push` as a real process against a real endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from redrive.ingest.schemes import StandardWebhooks
from redrive.ingest.signatures import Verified
from tests.push.endpoint import Reply, Request, endpoint
from tests.surfaces.conftest import Cli, Process, clean_environment, cli, here, redrive, start

__all__ = ["clean_environment", "cli", "here", "redrive", "start"]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BROKER = "sqlite:///push.db"
Start = Callable[..., Process]


async def test_messages_are_pushed_until_sigterm_drains(start: Start, redrive: Cli, here: Path) -> None:
    def decide(request: Request) -> Reply:
        return Reply(status=400, body=b"unknown customer") if b"bad" in request.body else Reply()

    (here / "secrets").write_text(f"# current\n{SECRET}\n")
    (here / "token").write_text("Bearer top-secret\n")
    redrive("publish", "orders", '{"n": 1}', "--message-id", "m-1", "--broker", BROKER)
    redrive("publish", "orders", '{"bad": 1}', "--message-id", "m-2", "--broker", BROKER)
    async with endpoint(decide) as service:
        process = start(
            *("push", "orders", service.url, "--broker", BROKER, "--allow-private", "--dead-letter-4xx"),
            *("--secrets-file", "secrets", "--authorization-file", "token"),
        )
        await process.event("delivery.dead_lettered", message_id="m-2")
        await process.until(lambda: len(service.requests) == 2)
        process.tell()
        code = await process.ended()

    (dead,) = redrive("dlq", "list", "--broker", BROKER, "--json").json["letters"]
    shown = redrive("dlq", "show", dead["id"], "--broker", BROKER, "--json").out
    scheme = StandardWebhooks()
    assert 0 == code
    assert ("HTTP_400", "m-2") == (dead["reason_code"], dead["message_id"])
    assert "HTTP 400 Bad Request: unknown customer" in json.dumps(json.loads(shown))
    for request in service.requests:
        raw = [(name.encode(), value.encode()) for name, value in request.headers.items()]
        now = int(request.headers["webhook-timestamp"]) * 1_000
        seen = scheme.verify(raw, request.body, keys=[scheme.key(SECRET)], now=now, tolerance_ms=1_000)
        assert isinstance(seen, Verified)
        assert "Bearer top-secret" == request.headers["authorization"]
    assert "top-secret" not in process.text() + shown


def test_a_private_address_is_refused_before_anything_runs(cli: Cli) -> None:
    ran = cli("push", "orders", "http://169.254.169.254/x", "--broker", BROKER, "--json")

    assert 2 == ran.code
    assert "link-local" in ran.err
    assert "--allow-private" in ran.err


def test_files_of_secrets_are_checked_and_not_shown(cli: Cli, here: Path) -> None:
    (here / "empty").write_text("\n# nothing\n")
    (here / "wrong").write_text("s3cr3t!\n")
    (here / "two").write_text("a\nb\n")
    url = "https://service.example/"

    for option, name in (
        ("--secrets-file", "empty"),
        ("--secrets-file", "wrong"),
        ("--secrets-file", "none"),
        ("--authorization-file", "two"),
    ):
        ran = cli("push", "orders", url, "--broker", BROKER, option, name)
        assert 2 == ran.code, ran.err
        assert "s3cr3t" not in ran.err


async def test_with_an_app_its_broker_is_used_and_its_own_consumer_is_not(start: Start, redrive: Cli) -> None:
    redrive("publish", "orders", '{"n": 1}', "--app", "shop:app")
    async with endpoint() as service:
        process = start("push", "orders", service.url, "--app", "shop:app", "--allow-private")
        await process.until(lambda: service.requests)
        process.tell()
        code = await process.ended()

    assert 0 == code
    assert "handled" not in process.text()
