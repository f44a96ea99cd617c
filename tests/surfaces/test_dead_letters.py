"""`redrive dlq …` on a real file: what it prints, what it changes, and what it refuses."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from redrive.cli.letter_page import _pretty
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.settlement import Reason
from redrive.runtime.app import Redrive
from redrive.service import looking
from redrive.testing.samples import HARD_BODIES, HARD_HEADERS, QUEUE, hard_letter, letter, message
from tests.surfaces.conftest import COMMAND, Cli, clean_environment, put

APP = ("--app", "shop:app")

SUMMARY = {
    "id", "queue", "dead_letter_queue", "state", "reason_code", "reason_text", "error_type", "error_code",
    "attempt_count", "message_id", "key", "tenant", "message_type", "group", "group_title", "first_failed_at",
    "dead_lettered_at", "expires_at", "redrive_count", "previous", "outstanding_job", "body_bytes", "version",
}  # fmt: skip
HOSTILE = "\x1b]0;owned\x07\x1b[2J<img src=x onerror=alert(1)>[bold red]x[/]\u202egnp.exe\r\n"


async def states(shop: Redrive) -> dict[str, ReviewState]:
    page = await shop.backend.letters.find(Selection(), limit=100)
    return {found.id: found.state for found in page.letters}


async def waiting(shop: Redrive, queue: str = QUEUE) -> int:
    return len(await shop.backend.broker.peek(queue, limit=1_000))


# ------------------------------------------------------------------------------------------------- looking


async def test_a_list_is_paged_oldest_first(cli: Cli, shop: Redrive) -> None:
    ids = await put(shop, 5)

    first = cli("dlq", "list", *APP, "--limit", "3", "--json").json
    second = cli("dlq", "list", *APP, "--limit", "3", "--cursor", first["cursor"], "--json").json

    assert ids == [found["id"] for found in first["letters"] + second["letters"]]
    assert second["cursor"] is None
    assert set(first["letters"][0]) == SUMMARY
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["letters"][0]["dead_lettered_at"])


async def test_filters_hold_together(cli: Cli, shop: Redrive) -> None:
    await put(shop, 3)
    await shop.backend.letters.put(
        [
            letter(
                "dl_other",
                died_at=shop.clock.now() - 7_200_000,
                reason=Reason(code="EXPIRED", text="too old"),
                error_code="EXPIRED",
                error_type=None,
                fingerprint="fp-2",
                message=message("m-x", tenant="acme", key="k-x"),
            )
        ]
    )

    def found(*filters: str) -> list[str]:
        return [entry["id"] for entry in cli("dlq", "list", *APP, *filters, "--json").json["letters"]]

    assert ["dl_other"] == found("--reason", "EXPIRED")
    assert ["dl_other"] == found("--tenant", "acme", "--key", "k-x", "--group", "fp-2", "--error-code", "EXPIRED")
    assert ["dl_other"] == found("--until", "1h")
    assert ["dl_0001", "dl_0002", "dl_0003"] == found("orders", "--since", "1h", "--error-type", "TimeoutError")
    assert ["dl_other"] == found("orders.dead", "--text", "TOO OLD")
    assert ["dl_0002"] == found("--id", "dl_0002")
    assert [] == found("--tenant", "acme", "--reason", "TIMEOUT_EXHAUSTED")


def test_the_same_clock_time_in_two_offsets_is_two_instants() -> None:
    """Case BO-05."""
    from redrive.cli.options import parse_time

    summer = parse_time("2025-10-26T02:30:00+02:00", "--since")
    winter = parse_time("2025-10-26T02:30:00+01:00", "--since")

    assert (1_761_438_600_000, 1_761_442_200_000) == (summer, winter)


async def test_one_letter_is_shown_with_everything(cli: Cli, shop: Redrive) -> None:
    await shop.backend.letters.put([hard_letter()])

    shown = cli("dlq", "show", "dl_hard", *APP, "--json").json

    assert {"$bytes": __import__("base64").b64encode(HARD_BODIES["not UTF-8"]).decode()} == shown["message"]["body"]
    assert len(HARD_HEADERS) == len(shown["message"]["headers"])
    assert {"$time": "2023-11-14T22:13:20Z"} == shown["message"]["headers"]["t"]
    assert shown["message"]["headers"]["b"] is True
    assert ["failed", "interrupted"] == [entry["outcome"] for entry in shown["history"]]
    assert [] == shown["audit"]


async def test_looking_changes_nothing(cli: Cli, shop: Redrive, here: Path) -> None:
    """Case BR-01: thirty lists, ten looks at each letter, and one reader killed in the middle of a list."""
    ids = await put(shop, 5, redrive_count=1)
    before = [await shop.backend.letters.get(id_) for id_ in ids]

    for _ in range(30):
        cli("dlq", "list", *APP)
    for id_ in ids * 10:
        cli("dlq", "show", id_, *APP)
    cli("dlq", "stats", *APP)
    hanging = subprocess.Popen(
        [*COMMAND, "dlq", "list", *APP, "--json"], cwd=here, env=clean_environment(), stdout=subprocess.PIPE
    )
    assert hanging.stdout is not None
    hanging.stdout.read(1)
    hanging.kill()
    hanging.communicate()

    assert before == [await shop.backend.letters.get(id_) for id_ in ids]
    assert ids == [entry["id"] for entry in cli("dlq", "list", *APP, "--json").json["letters"]]
    dead = [found for found in await shop.backend.broker.depths() if found.queue == "orders.dead"]
    assert [(5, 0)] == [(found.ready, found.leased) for found in dead]


async def test_stats_name_the_problems(cli: Cli, shop: Redrive) -> None:
    await put(shop, 3)

    shown = cli("dlq", "stats", "orders", *APP, "--json").json

    assert (3, {"pending": 3}, {"orders": 3}) == (shown["total"], shown["by_state"], shown["by_queue"])
    assert [("fp-1", "TimeoutError: no answer", 3)] == [
        (group["group"], group["title"], group["count"]) for group in shown["groups"]
    ]


async def test_counts_say_where_there_are_more(cli: Cli, shop: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "COUNTED", 2)
    await put(shop, 3)

    told = cli("dlq", "stats", "--reason", "TIMEOUT_EXHAUSTED", *APP).out
    shown = cli("dlq", "stats", "--reason", "TIMEOUT_EXHAUSTED", *APP, "--json").json
    monkeypatch.setattr(looking, "COUNTED", 3)
    exact = cli("dlq", "stats", "--reason", "TIMEOUT_EXHAUSTED", *APP)

    assert "at least 2" in told
    assert (2, True) == (shown["total"], shown["is_at_least"])
    assert "at least" not in exact.out


async def test_a_terminal_does_not_obey_what_a_message_says(cli: Cli, shop: Redrive) -> None:
    """Case BR-02, for terminals."""
    await shop.backend.letters.put(
        [
            letter(
                "dl_evil",
                died_at=shop.clock.now(),
                reason=Reason(code="X", text=HOSTILE),
                group_title=HOSTILE,
                message=message("m" + HOSTILE, tenant=HOSTILE, headers={HOSTILE: HOSTILE}, body=HOSTILE.encode()),
            )
        ]
    )

    for arguments in (("list",), ("show", "dl_evil"), ("stats",)):
        shown = cli("dlq", *arguments, *APP)
        assert 0 == shown.code, shown
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", shown.out + shown.err)
    assert "[bold red]x[/]" in cli("dlq", "list", *APP).out


@pytest.mark.parametrize(("limit", "reader"), [("500", "head -c 10"), ("1", "true")])
async def test_a_reader_that_goes_away_is_no_error(here: Path, shop: Redrive, limit: str, reader: str) -> None:
    """In the middle of a long answer, and before the first byte of a short one."""
    await put(shop, 500)

    script = f"{' '.join(COMMAND)} dlq list --limit {limit} --json {' '.join(APP)} | {reader}"
    environment = clean_environment(PYTHONUNBUFFERED="")
    done = subprocess.run(["sh", "-c", script], cwd=here, env=environment, capture_output=True, check=False)

    assert b"" == done.stderr
    assert len(done.stdout) <= 10


async def test_an_unknown_letter_is_named(cli: Cli, shop: Redrive) -> None:
    shown = cli("dlq", "show", "dl_nobody", *APP, "--json")

    assert (1, "not_found") == (shown.code, shown.error["code"])
    assert "dl_nobody" in shown.error["text"]


# ------------------------------------------------------------------------------------------------- redriving


async def test_a_dry_run_tells_and_changes_nothing(cli: Cli, shop: Redrive) -> None:
    await put(shop, 3)

    shown = cli("dlq", "redrive", "orders.dead", "--limit", "2", "--rate", "120/min", "--dry-run", *APP, "--json")

    assert 0 == shown.code
    assert (True, 2, 0, 1_000) == tuple(shown.json[name] for name in ("dry_run", "send", "skip", "takes_ms"))
    queue = {"queue": "orders", "target": "orders", "target_exists": True, "send": 2, "skip": 0}
    assert [queue] == shown.json["queues"]
    assert ["dl_0001", "dl_0002"] == shown.json["letters"]
    assert {ReviewState.PENDING} == set((await states(shop)).values())


async def test_a_limit_sends_the_oldest(cli: Cli, shop: Redrive) -> None:
    """By the dead-letter queue's name, up to N."""
    await put(shop, 3)

    shown = cli(
        "dlq", "redrive", "orders.dead", "--limit", "2", "--yes", "--note", "fixed", "--actor", "ann", *APP, "--json"
    )

    assert 0 == shown.code
    assert ("done", 2, 0, "ann", "fixed") == tuple(
        shown.json["job"][name] for name in ("state", "sent", "skipped", "actor", "note")
    )
    assert {"dl_0001": "replayed", "dl_0002": "replayed", "dl_0003": "pending"} == await states(shop)
    assert 2 == await waiting(shop)


async def test_without_a_terminal_and_without_yes_nothing_is_sent(cli: Cli, shop: Redrive) -> None:
    await put(shop, 1)

    shown = cli("dlq", "redrive", "orders", *APP, "--json")

    assert 2 == shown.code
    assert "--yes" in shown.error["hint"]
    assert 0 == await waiting(shop)


async def test_what_is_not_sent_makes_the_exit_code_one(cli: Cli, shop: Redrive) -> None:
    await put(shop, 1)
    await shop.backend.letters.put([letter("dl_often", died_at=shop.clock.now(), redrive_count=3)])

    shown = cli("dlq", "redrive", "dl_0001", "dl_often", "dl_nobody", "--yes", *APP, "--json")

    assert 1 == shown.code
    assert (1, 1, ["dl_nobody"]) == (shown.json["job"]["sent"], shown.json["job"]["skipped"], shown.json["missing"])
    assert "--force" in shown.json["skipped"][0]["why"]


async def test_what_is_refused_is_counted_by_reason_and_can_be_told_to_go(cli: Cli, shop: Redrive) -> None:
    now = shop.clock.now()
    await shop.backend.letters.put(
        [
            letter("dl_old", died_at=now - 8 * 86_400_000, message=message("m-old")),
            letter("dl_first", died_at=now - 2, message=message("m-1", key="k")),
            letter("dl_second", died_at=now - 1, message=message("m-2", key="k")),
        ]
    )

    tried = cli("dlq", "redrive", "dl_old", "dl_second", "--dry-run", *APP)
    sent = cli("dlq", "redrive", "dl_old", "dl_second", "--even-if", "dedup-expired", "--yes", *APP, "--json")
    shown = cli("dlq", "jobs", sent.json["job"]["id"], *APP)
    rest = cli("dlq", "redrive", "dl_second", "--even-if", "out-of-order", "--yes", *APP, "--json")

    assert "Skipped by reason: 1 dedup-expired, 1 out-of-order." in tried.err
    assert "--even-if dedup-expired" in tried.err
    assert (1, 1, {"out-of-order": 1}) == (sent.code, sent.json["job"]["sent"], sent.json["refusals"])
    assert [("dl_second", "out-of-order")] == [(each["id"], each["code"]) for each in sent.json["skipped"]]
    assert "dl_first" in sent.json["skipped"][0]["why"]
    assert "Skipped by reason: 1 out-of-order." in shown.err
    assert (0, 1, {}) == (rest.code, rest.json["job"]["sent"], rest.json["refusals"])


async def test_a_dry_run_says_that_the_target_is_not_there(cli: Cli, shop: Redrive) -> None:
    await put(shop, 1)

    shown = cli("dlq", "redrive", "orders", "--to", "gone", "--dry-run", *APP)

    assert 1 == shown.code
    assert 'There is no queue "gone"' in shown.err


@pytest.mark.parametrize(
    "option",
    [("--even-if", "out-of-order"), ("--canary", "5"), ("--edit", "patch.json"), ("--request-key", "k"), ("--detach",)],
    ids=lambda option: option[0],
)
def test_what_needs_the_store_is_refused_in_place(cli: Cli, option: tuple[str, ...]) -> None:
    shown = cli("dlq", "redrive", "orders.dead", "--broker", "amqp://127.0.0.1:1/", *option, "--yes", "--json")

    assert 2 == shown.code
    assert f"{option[0]} needs the store" in str(shown.error)


async def test_nothing_to_send_is_said_and_is_no_error(cli: Cli, shop: Redrive) -> None:
    shown = cli("dlq", "redrive", "orders", *APP)

    assert 0 == shown.code
    assert "No letters to redrive" in shown.err


@pytest.mark.parametrize("more", [(), ("--yes",), ("--dry-run",)])
async def test_a_queue_that_is_not_there_is_an_error(cli: Cli, shop: Redrive, more: tuple[str, ...]) -> None:
    shown = cli("dlq", "redrive", "ordres", *more, *APP)

    assert 1 == shown.code
    assert 'There is no queue "ordres", and no dead letter of one. Nothing was sent.' in shown.err
    assert 0 == len(await shop.backend.jobs.list())


async def test_a_queue_only_the_broker_knows_has_no_letters_to_redrive(cli: Cli, shop: Redrive) -> None:
    await shop.publish("refunds", {})

    shown = cli("dlq", "redrive", "refunds", *APP)

    assert (0, True) == (shown.code, "No letters to redrive" in shown.err)


async def test_the_same_request_key_makes_one_job(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)
    command = ("dlq", "redrive", "dl_0001", "--request-key", "click-1", "--yes", *APP, "--json")

    first, second = cli(*command), cli(*command)

    assert first.json["job"] == second.json["job"]
    assert 1 == await waiting(shop)


async def test_a_detached_job_waits_is_listed_stopped_and_resumed(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)

    staged = cli("dlq", "redrive", "orders", "--detach", "--yes", *APP, "--json").json["job"]
    listed = cli("dlq", "jobs", *APP, "--json").json["jobs"]
    tried = cli("dlq", "abort", staged["id"], "--dry-run", *APP, "--json")
    aborted = cli("dlq", "abort", staged["id"], "--yes", "--note", "not yet", "--actor", "ann", *APP, "--json").json[
        "job"
    ]
    resumed = cli("dlq", "resume", staged["id"], *APP, "--json").json["job"]
    again = cli("dlq", "resume", staged["id"], *APP, "--json")
    one = cli("dlq", "jobs", staged["id"], *APP).out

    assert ("staged", [staged]) == (staged["state"], listed)
    assert "staged" == tried.json["job"]["state"]
    assert ("aborted", "aborted by ann: not yet") == (aborted["state"], aborted["error"])
    assert ("done", 2) == (resumed["state"], resumed["sent"])
    assert (1, "illegal_transition") == (again.code, again.error["code"])
    assert f"Job {staged['id']} is done: 2 letters sent, 0 skipped." in one


async def test_another_target_and_kept_attempts_are_options_of_the_job(cli: Cli, shop: Redrive) -> None:
    await put(shop, 1)
    await shop.publish("quarantine", {"n": 1})

    shown = cli(
        "dlq", "redrive", "--all", "--to", "quarantine", "--keep-attempts", "--keep-ttl", "--yes", *APP, "--json"
    )

    options = shown.json["job"]["options"]
    assert ("quarantine", True, True) == (options["target_queue"], options["keep_attempts"], options["keep_ttl"])
    assert 2 == await waiting(shop, "quarantine")


async def test_a_target_nobody_knows_fails_the_job_and_it_can_be_resumed(cli: Cli, shop: Redrive) -> None:
    """Case RD-03."""
    await put(shop, 2)

    broken = cli("dlq", "redrive", "orders", "--to", "gone", "--yes", *APP, "--json")
    text = cli("dlq", "jobs", broken.json["job"]["id"], *APP)
    await shop.publish("gone", {"n": 1})
    resumed = cli("dlq", "resume", broken.json["job"]["id"], *APP, "--json")

    assert (1, "failed", 0) == (broken.code, broken.json["job"]["state"], broken.json["job"]["sent"])
    assert "gone" in broken.json["job"]["error"]
    assert "redrive dlq resume" in text.err
    assert (0, 2) == (resumed.code, resumed.json["job"]["sent"])


# ------------------------------------------------------------------------------------------------- reviewing


async def test_letters_are_reviewed_closed_and_restored_with_who_and_why(cli: Cli, shop: Redrive) -> None:
    await put(shop, 3)

    reviewed = cli("dlq", "review", "dl_0001", "--note", "seen", "--actor", "ann", "--yes", *APP, "--json")
    closed = cli("dlq", "close", "orders", "--limit", "2", "--yes", *APP, "--json")
    tried = cli("dlq", "restore", "--all", "--dry-run", *APP, "--json")
    restored = cli("dlq", "restore", "dl_0002", "--yes", *APP, "--json")

    assert (0, "reviewed", 1) == (reviewed.code, reviewed.json["to"], reviewed.json["changed"])
    assert 2 == closed.json["changed"]
    assert {"dry_run": True, "verb": "restore", "letters": 2} == tried.json
    assert 1 == restored.json["changed"]
    assert {"dl_0001": "closed", "dl_0002": "pending", "dl_0003": "pending"} == await states(shop)
    audit = cli("dlq", "show", "dl_0001", *APP, "--json").json["audit"]
    assert ("ann", "reviewed", "seen") == (audit[0]["actor"], audit[0]["action"], audit[0]["note"])


async def test_an_archived_letter_is_refused_until_it_is_restored(cli: Cli, shop: Redrive) -> None:
    """Case RD-11."""
    await put(shop, 1)
    cli("dlq", "close", "dl_0001", "--yes", *APP)

    refused = cli("dlq", "redrive", "dl_0001", "--yes", *APP, "--json")
    cli("dlq", "restore", "dl_0001", "--yes", *APP)
    sent = cli("dlq", "redrive", "dl_0001", "--yes", *APP, "--json")

    assert (1, "it is closed: restore it first") == (refused.code, refused.json["skipped"][0]["why"])
    assert (0, 1) == (sent.code, sent.json["job"]["sent"])


@pytest.mark.parametrize("verb", ["review", "close"])
async def test_a_try_counts_and_changes_nothing(cli: Cli, shop: Redrive, verb: str) -> None:
    await put(shop, 2)

    shown = cli("dlq", verb, "orders", "--dry-run", *APP)

    assert f"Would {verb} 2 letters. Nothing was changed.\n" == shown.out
    assert {ReviewState.PENDING} == set((await states(shop)).values())


async def test_a_refusal_makes_the_exit_code_one(cli: Cli, shop: Redrive) -> None:
    await put(shop, 1)

    shown = cli("dlq", "restore", "dl_0001", "dl_nobody", "--yes", *APP, "--json")

    assert (1, ["dl_nobody"]) == (shown.code, shown.json["missing"])


# ------------------------------------------------------------------------------------------------- as shown


async def test_on_a_narrow_terminal_ids_stay_whole_and_pages_short(here: Path, shop: Redrive) -> None:
    ids = ("dl_4a716b6f76c266fd6de66fe5", "v1-5422b883330b4cca")
    reason = Reason(code="A_REASON_OF_SOME_LENGTH_EXHAUSTED", text="a long story " * 20)
    told = letter(ids[0], fingerprint=ids[1], group_title="a long story " * 20, reason=reason)
    await shop.backend.letters.put([told])
    environment = {**clean_environment(), "COLUMNS": "80"}
    leader, follower = pty.openpty()

    for command, whole, most in (("list", ids[0], 10), ("stats", ids[1], 32)):
        subprocess.run([*COMMAND, "dlq", command, *APP], cwd=here, env=environment, stdout=follower, check=True)

        lines = os.read(leader, 65_536).decode().splitlines()
        assert any(whole in line for line in lines)
        assert len(lines) <= most


@pytest.mark.parametrize(
    "body", ['{"price":1.50,"price":2,"n":9007199254740993,"e":"\\u00e9"}', "[" * 100_000, "NaN", "plain"]
)
def test_a_pretty_body_says_what_the_body_says(body: str) -> None:
    shown = _pretty(body)

    assert "".join(body.split()) == "".join(shown.split())
