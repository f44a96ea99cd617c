"""`redrive doctor | alerts | metrics`: what they print, how they end, and that they change nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.core.alerts import DEFAULT_GROUPS, rule_file
from redrive.runtime.app import Redrive
from tests.surfaces.conftest import Cli, Process, put

APP = ("--app", "shop:app")


async def test_nothing_wrong_ends_with_0(cli: Cli, shop: Redrive) -> None:
    await put(shop, 100)

    found = cli("alerts", *APP)

    assert (0, "Nothing is wrong.") == (found.code, found.out.strip())
    assert "Not judged: DeadLetterRateHigh. A running worker tells" in found.err


async def test_what_is_wrong_is_told_with_what_to_do_and_ends_with_1(cli: Cli, shop: Redrive) -> None:
    await put(shop, 101)

    text, answer = cli("alerts", *APP), cli("alerts", *APP, "--json")

    assert (1, 1) == (text.code, answer.code)
    assert "101 dead letters wait" in text.out
    assert "redrive dlq stats" in text.out
    (alert,) = answer.json["firing"]
    assert ("DeadLettersMany", "firing", 101) == (alert["alert"], alert["state"], alert["value"])


async def test_an_app_that_cannot_be_asked_ends_with_2(cli: Cli, here: Path) -> None:
    away = cli("alerts", "--broker", f"sqlite:///{here / 'nothing.db'}", "--json")
    no_worker = cli("alerts", "--app", "shop:app", "--from", "http://127.0.0.1:1/metrics")

    assert (2, "configuration") == (away.code, json.loads(away.err)["error"]["code"])
    assert 2 == no_worker.code
    assert "does not answer" in no_worker.err


@pytest.mark.parametrize("every", ["0s", "10ms", "soon"])
def test_a_watch_that_never_rests_is_refused(cli: Cli, every: str) -> None:
    assert 2 == cli("alerts", *APP, "--watch", "--every", every).code


async def test_a_watch_tells_what_begins_and_what_is_over(shop: Redrive, start: Callable[..., Process]) -> None:
    (first,) = await put(shop, 1)
    watching = start("alerts", *APP, "--group", "every-letter", "--watch", "--every", "1s", "--json")
    began = await watching.until(lambda: [line for line in watching.lines() if line.get("state") == "firing"])

    watching.tell(signal.SIGINT)

    assert [("NewDeadLetters", 1)] == [(line["alert"], line["value"]) for line in began]
    assert 130 == await watching.ended()
    assert await shop.backend.letters.get(first) is not None


async def test_a_timer_is_told_what_changed_since_it_looked(cli: Cli, shop: Redrive, here: Path) -> None:
    kept = ("--group", "every-letter", "--state", "alerts.json")
    before = cli("alerts", *APP, *kept)
    await put(shop, 2)

    first, second, answer = cli("alerts", *APP, *kept), cli("alerts", *APP, *kept), cli("alerts", *APP, *kept, "--json")

    assert (0, "") == (before.code, before.out)
    assert (1, 1, 1) == (first.code, second.code, answer.code)
    assert "FIRING NewDeadLetters (critical): 2 new dead letters" in first.out
    assert "" == second.out
    assert (1, []) == (len(answer.json["firing"]), answer.json["turns"])


def test_rules_are_printed_for_prometheus(cli: Cli) -> None:
    text, answer = cli("metrics"), cli("metrics", "--json")
    bare = cli("metrics", "--group", "dead-letters", REDRIVE_METRICS_PREFIX="")

    assert rule_file(DEFAULT_GROUPS) == answer.json
    assert (
        '      - alert: "RedriveDeadLettersMany"\n        expr: "(max by (job) (redrive_dlq_size)) > 100"' in text.out
    )
    assert "(max by (job) (dlq_size)) > 100" in bare.out
    assert "redis" not in bare.out


def test_a_prefix_that_no_metric_can_have_is_refused(cli: Cli) -> None:
    assert 2 == cli("metrics", "--prefix", "1 x").code


# ---------------------------------------------------------------------------------------------------- doctor


async def test_a_sound_file_is_looked_at_and_nothing_found(cli: Cli, shop: Redrive) -> None:
    await put(shop, 3)

    text, answer = cli("doctor", *APP), cli("doctor", *APP, "--json")

    assert (0, 0) == (text.code, answer.code)
    assert "Nothing found that loses messages." in text.out
    assert ([], 3) == (answer.json["findings"], answer.json["facts"]["letters"])


def test_a_file_that_is_not_there_is_not_made(cli: Cli, here: Path) -> None:
    found = cli("doctor", "--broker", f"sqlite:///{here / 'new.db'}", "--json")

    assert (0, ["no_file"]) == (found.code, [finding["code"] for finding in found.json["findings"]])
    assert not (here / "new.db").exists()


async def test_settings_that_lose_messages_are_found_as_badly_as_wanted(cli: Cli, shop: Redrive) -> None:
    quiet = cli("doctor", *APP, REDRIVE_DURABILITY="normal")
    warned = cli("doctor", *APP, "--fail-on", "warning", REDRIVE_DURABILITY="normal")
    strict = cli("doctor", *APP, "--strict", "--json", REDRIVE_DURABILITY="normal")
    never = cli("doctor", *APP, "--strict", "--fail-on", "never", REDRIVE_DURABILITY="normal")

    assert (0, 1, 1, 0) == (quiet.code, warned.code, strict.code, never.code)
    assert "WARNING durability_normal" in quiet.out
    assert "At risk: A power cut" in quiet.out
    assert ["error"] == [finding["level"] for finding in strict.json["findings"]]


def test_a_damaged_file_is_a_finding(cli: Cli, here: Path) -> None:
    (here / "broken.db").write_bytes(b"not a database at all" * 1_000)

    found = cli("doctor", "--broker", f"sqlite:///{here / 'broken.db'}", "--json")

    assert 1 == found.code
    assert "error" == found.json["findings"][0]["level"]
