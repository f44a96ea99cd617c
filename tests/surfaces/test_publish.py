"""`redrive publish`, `queues list`, `backup`, `restore`."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from redrive.runtime.app import Redrive
from redrive.testing.samples import QUEUE
from tests.surfaces.conftest import Cli, put

APP = ("--app", "shop:app")


async def test_a_message_is_sent_byte_for_byte_with_what_was_said(cli: Cli, shop: Redrive) -> None:
    body = '{"id": 9007199254740993, "note":"café 😀"}'

    shown = cli(
        "publish", "orders", body, "--key", "k-1", "--tenant", "acme", "--priority", "3", "--header", "region=eu=1",
        "--type", "order.created", "--ttl", "1h", *APP, "--json",
    )  # fmt: skip

    assert {"queue": "orders", "published": 1, "duplicates": 0, "conflicts": 0} == shown.json
    (sent,) = await shop.backend.broker.peek(QUEUE, limit=5)
    assert (body.encode(), "application/json", "k-1", "acme", 3) == (
        sent.body,
        sent.content_type,
        sent.key,
        sent.tenant,
        sent.priority,
    )
    assert ({"region": "eu=1"}, "order.created") == (dict(sent.headers), sent.properties.type)
    assert sent.expires_at == sent.published_at + 3_600_000


async def test_a_body_comes_from_standard_input_as_it_is(cli: Cli, shop: Redrive) -> None:
    cli("publish", "orders", *APP, stdin=b"\xff\x00raw")
    cli("publish", "orders", "-", *APP, stdin="plain text\n")

    raw, text = await shop.backend.broker.peek(QUEUE, limit=5)
    assert (b"\xff\x00raw", None) == (raw.body, raw.content_type)
    assert (b"plain text\n", "text/plain; charset=utf-8") == (text.body, text.content_type)


@pytest.mark.parametrize("payload", [(), ("-",)])
async def test_an_empty_standard_input_is_no_message_and_an_empty_body_is_one(
    cli: Cli, shop: Redrive, payload: tuple[str, ...]
) -> None:
    refused = cli("publish", "orders", *payload, *APP, stdin=b"")

    assert (2, []) == (refused.code, await shop.backend.broker.peek(QUEUE, limit=5))
    assert "Standard input is empty. Nothing was sent." in refused.err

    assert 0 == cli("publish", "orders", "", *APP).code
    assert [b""] == [message.body for message in await shop.backend.broker.peek(QUEUE, limit=5)]


async def test_a_delay_is_kept(cli: Cli, shop: Redrive) -> None:
    cli("publish", "orders", "{}", "--delay", "1h", *APP)

    shown = cli("queues", "list", *APP, "--json").json["queues"]

    orders = next(queue for queue in shown if queue["queue"] == "orders")
    assert (0, 1, True) == (orders["ready"], orders["scheduled"], orders["is_consumed"])


async def test_a_file_of_json_lines_is_sent_in_batches(cli: Cli, shop: Redrive, here: Path) -> None:
    lines = [json.dumps({"n": number}) for number in range(2_500)]
    (here / "many.jsonl").write_text("\n".join(lines) + "\n\n")

    by_file = cli("publish", "orders", "--file", "many.jsonl", *APP, "--json")
    by_pipe = cli("publish", "orders", "--file", "-", *APP, "--json", stdin="\n".join(lines[:10]))

    assert (2_500, 10) == (by_file.json["published"], by_pipe.json["published"])
    sent = await shop.backend.broker.peek(QUEUE, limit=5_000)
    assert [line.encode() for line in lines] == [message.body for message in sent[:2_500]]


async def test_a_file_with_a_bad_line_sends_nothing(cli: Cli, shop: Redrive, here: Path) -> None:
    (here / "bad.jsonl").write_text("{}\n" * 1_500 + "{oops\n")

    shown = cli("publish", "orders", "--file", "bad.jsonl", *APP, "--json")

    assert 2 == shown.code
    assert "Line 1501 of bad.jsonl" in shown.error["text"]
    assert shown.error["text"].endswith("Nothing was sent.")
    assert [] == await shop.backend.broker.peek(QUEUE, limit=5)


@pytest.mark.parametrize(("good", "sent"), [(2, "Nothing was sent."), (1_500, "The first 1 000 messages went out.")])
async def test_a_pipe_with_a_bad_line_says_what_went_out(cli: Cli, shop: Redrive, good: int, sent: str) -> None:
    shown = cli("publish", "orders", "--file", "-", *APP, "--json", stdin="{}\n" * good + "{oops\n")

    assert 2 == shown.code
    assert f"Line {good + 1} of standard input" in shown.error["text"]
    assert shown.error["text"].endswith(sent)
    assert good // 1_000 * 1_000 == len(await shop.backend.broker.peek(QUEUE, limit=2_000))


async def test_a_named_pipe_is_read_once_and_sent_whole(cli: Cli, shop: Redrive, here: Path) -> None:
    os.mkfifo(here / "pipe")
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit((here / "pipe").write_text, '{"n":1}\n{"n":2}\n')

        shown = cli("publish", "orders", "--file", "pipe", *APP, "--json")

        writing.result()
    assert 2 == shown.json["published"]
    assert 2 == len(await shop.backend.broker.peek(QUEUE, limit=5))


@pytest.mark.parametrize("line", ["NaN", "[" * 100_000, "\ufeff{}", "{'n': 1}"])
async def test_what_no_consumer_could_read_is_no_json_line(cli: Cli, shop: Redrive, here: Path, line: str) -> None:
    (here / "bad.jsonl").write_text(line, "utf-8")

    as_line = cli("publish", "orders", "--file", "bad.jsonl", *APP, "--json")
    as_body = cli("publish", "orders", "-", *APP, "--json", stdin=line)

    assert (2, 0) == (as_line.code, as_body.code)
    assert "Line 1" in as_line.error["text"]
    (sent,) = await shop.backend.broker.peek(QUEUE, limit=5)
    assert "text/plain; charset=utf-8" == sent.content_type


async def test_a_queue_nobody_consumes_is_sent_to_with_a_word_about_it(cli: Cli, shop: Redrive) -> None:
    astray, known = cli("publish", "ordres", "{}", *APP), cli("publish", "orders", "{}", *APP)

    assert (0, "") == (known.code, known.err)
    assert 0 == astray.code
    assert 'no consumer for "ordres". Did you mean orders?' in astray.err


async def test_a_duration_without_a_unit_is_seconds(cli: Cli, shop: Redrive) -> None:
    cli("publish", "orders", "{}", "--ttl", "90", *APP)
    wrong = cli("publish", "orders", "{}", "--delay", "5x", *APP, "--json")

    (sent,) = await shop.backend.broker.peek(QUEUE, limit=5)
    assert sent.expires_at == sent.published_at + 90_000
    assert (2, True) == (wrong.code, wrong.error["text"].startswith("--delay is '5x'"))


async def test_once_sends_a_key_once_and_says_so(cli: Cli, shop: Redrive) -> None:
    command = ("publish", "orders", '{"n":1}', "--key", "k-1", "--once", *APP, "--json")

    first, second = cli(*command), cli(*command)

    assert [(1, 0), (0, 1)] == [(shown.json["published"], shown.json["duplicates"]) for shown in (first, second)]
    assert 1 == len(await shop.backend.broker.peek(QUEUE, limit=5))


async def test_an_impossible_message_is_refused(cli: Cli, shop: Redrive) -> None:
    shown = cli("publish", "orders", "x" * 100_000, *APP, "--json", REDRIVE_MAX_BODY_BYTES="1000")

    assert (1, "invalid_message") == (shown.code, shown.error["code"])


def test_a_broker_file_is_made_by_publishing(cli: Cli, here: Path) -> None:
    shown = cli("publish", "orders", "{}", "--broker", "sqlite:///new.db")

    assert (0, "1 message sent to orders.\n") == (shown.code, shown.out)
    assert (here / "new.db").exists()


async def test_queues_are_listed_with_what_is_dead(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)
    await shop.publish("orders", {"n": 1})

    shown = cli("queues", "list", *APP, "--json").json["queues"]

    assert {
        "queue",
        "ready",
        "scheduled",
        "leased",
        "dead",
        "oldest_ready_at",
        "is_consumed",
        "paused",
        "quarantined",
    } == set(shown[0])
    assert [("orders", 1, 2), ("refunds", 0, 0)] == [(queue["queue"], queue["ready"], queue["dead"]) for queue in shown]
    assert "orders" in cli("queues", "list", *APP).out


async def test_a_backup_is_whole_and_can_be_restored(cli: Cli, here: Path) -> None:
    app = Redrive("shop", f"sqlite:///{here / 'shop.db'}")
    async with app:
        await app.publish("orders", {"n": 1})
        await put(app, 3)
        saved = cli("backup", "saved.db", *APP, "--json")
        await app.publish("orders", {"n": 2})
        busy = cli("restore", "saved.db", *APP, "--overwrite", "--yes", "--json")

    tried = cli("restore", "saved.db", *APP, "--dry-run", "--json")
    refused = cli("restore", "saved.db", *APP, "--yes", "--json")
    restored = cli("restore", "saved.db", *APP, "--overwrite", "--yes", "--json")

    assert 0 == saved.code
    assert (1, "broker_unavailable") == (busy.code, busy.error["code"])
    assert (True, 1, 3) == (tried.json["dry_run"], tried.json["messages"], tried.json["letters"])
    assert 2 == refused.code
    assert Path(restored.json["kept"]).name != "shop.db"
    queues = {queue["queue"]: queue for queue in cli("queues", "list", *APP, "--json").json["queues"]}
    assert (1, 3) == (queues["orders"]["ready"], queues["orders"]["dead"])


def test_a_backup_writes_over_nothing(cli: Cli, here: Path) -> None:
    cli("publish", "orders", "{}", *APP)
    (here / "there.db").write_text("mine")

    shown = cli("backup", "there.db", *APP, "--json")

    assert 2 == shown.code
    assert "mine" == (here / "there.db").read_text()


def test_a_backup_into_no_directory_names_the_directory(cli: Cli) -> None:
    cli("publish", "orders", "{}", *APP)

    shown = cli("backup", "nowhere/saved.db", *APP, "--json")

    assert (2, True) == (shown.code, '"nowhere"' in shown.error["text"])


def test_a_file_that_is_no_backup_is_refused(cli: Cli, here: Path) -> None:
    (here / "junk.db").write_text("no database at all" * 100)

    shown = cli("restore", "junk.db", *APP, "--yes", "--json")

    assert shown.code in (1, 2)
    assert not (here / "shop.db").exists()
