"""Dead letters in place: looking changes nothing, sending back loses nothing and sends nothing twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rabbit import Rabbit
from tests.rabbitmq.by_hand import CLASSIC, QUORUM, Hands, Shell, hands_on, unlimited

DEAD = "orders.dead"
LOOKS = 30


@pytest.fixture(params=["classic", "quorum"])
def dead(request: pytest.FixtureRequest, rabbit: Rabbit, hands: Hands) -> str:
    """An empty dead-letter queue that can be looked at, and the queue its messages came from."""
    hands.queue("orders", CLASSIC)
    return hands.queue(DEAD, CLASSIC if request.param == "classic" else unlimited(rabbit))


def fill(hands: Hands, count: int, *, with_ids: bool = True, origin: str = "orders") -> None:
    for number in range(count):
        headers = {"x-original-queue": origin, "n": number}
        extra = {"message_id": f"m{number}"} if with_ids else {}
        hands.publish(DEAD, f"body {number}".encode(), headers=headers, **extra)


# ---------------------------------------------------------------------------------------------------- looking


def test_looking_thirty_times_changes_nothing(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    """Case BR-01."""
    fill(hands, 15)

    for _ in range(LOOKS):
        listed = shell.dlq("list", DEAD, "--json", on=rabbit)
        peeked = shell.dlq("peek", DEAD, "--json", on=rabbit)
        assert (0, 15) == (listed.code, listed.json["queues"][0]["depth"])
        assert [f"m{number}" for number in range(15)] == [each["message_id"] for each in peeked.json["messages"]]

    assert 15 == hands.ready(DEAD)
    found = hands.take_all(DEAD)
    assert [f"body {number}".encode() for number in range(15)] == [message.body for message in found]
    assert [{"x-original-queue": "orders", "n": number} for number in range(15)] == [
        {name: value for name, value in message.headers.items() if name != "x-delivery-count"} for message in found
    ]


@pytest.mark.parametrize("arguments", [{"x-delivery-limit": 3}, {}], ids=["limit of three", "nothing said"])
def test_a_look_that_would_count_towards_a_limit_is_refused(
    rabbit: Rabbit, hands: Hands, shell: Shell, arguments: dict[str, int]
) -> None:
    """Case BR-01."""
    if rabbit.major < 4 and not arguments:
        pytest.skip("3.x has no limit that nobody set")
    hands.queue(DEAD, {**QUORUM, **arguments})
    fill(hands, 5)

    refused = [shell.dlq("peek", DEAD, on=rabbit) for _ in range(LOOKS)]

    assert {1} == {each.code for each in refused}
    assert "delivery limit" in refused[0].err
    assert 5 == hands.ready(DEAD)
    assert {None, 0} >= {message.headers.get("x-delivery-count") for message in hands.take_all(DEAD)}


def test_a_limit_of_a_policy_counts(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    policy = {"pattern": f"^{DEAD}$", "definition": {"delivery-limit": 4}, "apply-to": "queues", "priority": 1}
    rabbit.server.api("PUT", f"/api/policies/{rabbit.vhost.name}/limited", policy)
    hands.queue(DEAD, QUORUM)
    fill(hands, 1)

    refused = shell.dlq("peek", DEAD, on=rabbit)

    assert (1, True) == (refused.code, "limit of 4" in refused.err)


def test_without_the_management_api_a_quorum_queue_is_looked_at_only_by_force(
    rabbit: Rabbit, hands: Hands, shell: Shell
) -> None:
    hands.queue(DEAD, unlimited(rabbit))
    fill(hands, 2)

    refused = shell.dlq("peek", DEAD, "--no-management", on=rabbit)
    forced = shell.dlq("peek", DEAD, "--no-management", "--force", "--json", on=rabbit)

    assert (1, True) == (refused.code, "not known without the management API" in refused.err)
    assert (0, 2) == (forced.code, len(forced.json["messages"]))


def test_without_the_management_api_a_classic_queue_is_known_by_what_the_broker_refuses(
    rabbit: Rabbit, hands: Hands, shell: Shell
) -> None:
    hands.queue(DEAD, {**CLASSIC, "x-max-length": 100, "x-overflow": "reject-publish", "x-message-ttl": 86_400_000})
    fill(hands, 2)

    peeked = shell.dlq("peek", DEAD, "--no-management", "--json", on=rabbit)

    assert (0, "classic", 2) == (peeked.code, peeked.json["type"], len(peeked.json["messages"]))


HANGING = """
import asyncio, sys
from redrive.brokers.rabbitmq.session import Session
from redrive.runtime.clock import SystemClock

async def hang():
    session = Session(sys.argv[1], clock=SystemClock())
    await session.open()
    async with session.channel() as channel:
        print(len(await channel.take(sys.argv[2], 5)), flush=True)
        await asyncio.Event().wait()

asyncio.run(hang())
"""


def test_a_look_that_is_killed_leaves_nothing_in_hand(rabbit: Rabbit, hands: Hands, dead: str) -> None:
    """Case BR-01."""
    fill(hands, 5)
    command = [sys.executable, "-c", HANGING, rabbit.url, DEAD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "5\n" == process.stdout.readline()
        assert 0 == hands.ready(DEAD)

        process.kill()

    hands.wait_for(DEAD, 5)
    assert [f"body {number}".encode() for number in range(5)] == [each.body for each in hands.take_all(DEAD)]


def test_hostile_text_reaches_no_terminal(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    """Case BR-02."""
    hostile = "\x1b]0;owned\x07\x1b[31m<script>\u202e"
    hands.publish(DEAD, hostile.encode(), headers={hostile: hostile}, message_id=hostile, correlation_id=hostile)

    shown = shell.dlq("peek", DEAD, on=rabbit)

    assert 0 == shown.code
    assert not {"\x1b", "\x07", "\u202e"} & set(shown.out + shown.err)
    assert "<script>" in shown.out


def test_dead_letter_queues_are_found_without_being_named(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    hands.queue(DEAD, CLASSIC)
    hands.queue("orders", {**CLASSIC, **dead_letters})
    hands.publish("orders", b"1")
    method, _, _ = hands.channel.basic_get("orders")
    hands.channel.basic_reject(method.delivery_tag, requeue=False)
    hands.wait_for(DEAD, 1)

    listed = shell.dlq("list", "--json", on=rabbit)

    (found,) = listed.json["queues"]
    assert (DEAD, 1) == (found["queue"], found["depth"])
    assert found["oldest_at"] is not None


def test_a_queue_that_is_not_there_is_said_and_not_made(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    told = [shell.dlq(verb, "nowhere", "--yes", on=rabbit) for verb in ("redrive",)]
    told.append(shell.dlq("list", "nowhere", on=rabbit))

    assert [1, 1] == [each.code for each in told]
    assert all('"nowhere" is not on the broker' in each.err for each in told)
    assert "No dead-letter queues" in shell.dlq("list", on=rabbit).err


def test_filters_are_refused_in_place(rabbit: Rabbit, shell: Shell) -> None:
    refused = shell.dlq("list", DEAD, "--reason", "TIMEOUT", on=rabbit)

    assert (2, True) == (refused.code, "no filters" in refused.err)


# ---------------------------------------------------------------------------------------------------- sending back


def test_dead_letters_go_back_to_where_they_came_from(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    fill(hands, 120)

    sent = shell.dlq("redrive", DEAD, "--yes", "--actor", "ann", "--json", on=rabbit)

    assert (0, 120, {"orders": 120}) == (sent.code, sent.json["moved"], sent.json["targets"])
    assert 0 == hands.ready(DEAD)
    found = hands.take_all("orders")
    assert [f"m{number}" for number in range(120)] == [message.properties.message_id for message in found]
    assert {("ann", 1, sent.json["batch"])} == {
        (each.headers["x-redriven-by"], each.headers["x-redriven-count"], each.headers["x-redriven-batch"])
        for each in found
    }


def test_a_copy_has_everything_but_what_a_broker_counts_from_or_acts_upon(
    rabbit: Rabbit, hands: Hands, shell: Shell, dead: str
) -> None:
    """Case RD-05."""
    deaths = [{"queue": "orders", "reason": "rejected", "count": 5, "exchange": "shop", "routing-keys": ["order.new"]}]
    headers = {
        "x-death": deaths, "CC": ["elsewhere"], "mine": {"deep": [1, True, b"\xff", None]}, "x-redrive-attempts": 5,
        "x-redrive-reason-code": "TIMEOUT", "x-redrive-letter": "dl_1", "x-redriven-count": 1,
    }  # fmt: skip
    hands.queue("elsewhere")
    hands.publish(
        DEAD, b"\x00body", headers=headers, priority=7, correlation_id="c-1", reply_to="answers", type="order.new",
        app_id="shop", content_type="application/x", content_encoding="gzip", timestamp=1_700_000_000,
        user_id=rabbit.vhost.user, message_id="m1", expiration="600000",
    )  # fmt: skip
    hands.take_all("elsewhere")

    sent = shell.dlq("redrive", DEAD, "--yes", "--json", on=rabbit)

    (copy,) = hands.take_all("orders")
    properties = copy.properties
    assert (0, b"\x00body") == (sent.code, copy.body)
    assert ("c-1", "answers", "order.new", "shop", 1_700_000_000, "m1", 7) == (
        properties.correlation_id, properties.reply_to, properties.type, properties.app_id, properties.timestamp,
        properties.message_id, properties.priority,
    )  # fmt: skip
    assert ("application/x", "gzip", None) == (
        properties.content_type,
        properties.content_encoding,
        properties.expiration,
    )
    kept = {name: value for name, value in copy.headers.items() if not name.startswith("x-redriven-")}
    assert kept == {
        "mine": {"deep": [1, True, b"\xff", None]}, "x-redrive-letter": "dl_1", "x-redrive-exchange": "shop",
        "x-redrive-routing-key": "order.new",
    }  # fmt: skip
    assert 2 == copy.headers["x-redriven-count"]
    assert 0 == hands.ready("elsewhere")


def test_attempts_start_anew_unless_they_are_to_go_on(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    headers = {"x-original-queue": "orders", "x-redrive-attempts": 5}
    hands.publish(DEAD, b"fresh", headers=headers)
    hands.publish(DEAD, b"goes on", headers=headers)

    shell.dlq("redrive", DEAD, "--limit", "1", "--yes", on=rabbit)
    shell.dlq("redrive", DEAD, "--keep-attempts", "--yes", on=rabbit)

    found = {message.body: message.headers.get("x-redrive-attempt") for message in hands.take_all("orders")}
    assert {b"fresh": None, b"goes on": 6} == found


def test_a_message_that_does_not_say_where_it_came_from_needs_a_target(
    rabbit: Rabbit, hands: Hands, shell: Shell, dead: str
) -> None:
    hands.publish(DEAD, b"1")

    refused = shell.dlq("redrive", DEAD, "--yes", on=rabbit)
    sent = shell.dlq("redrive", DEAD, "--to", "orders", "--yes", on=rabbit)

    assert (1, True) == (refused.code, "--to QUEUE" in refused.err)
    assert (0, 1) == (sent.code, hands.ready("orders"))


def test_a_limit_takes_the_oldest(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    fill(hands, 10)

    sent = shell.dlq("redrive", DEAD, "--limit", "4", "--yes", "--json", on=rabbit)

    assert 4 == sent.json["moved"]
    assert [f"m{number}" for number in range(4)] == [each.properties.message_id for each in hands.take_all("orders")]
    assert [f"m{number}" for number in range(4, 10)] == [each.properties.message_id for each in hands.take_all(DEAD)]


def test_a_dry_run_and_a_missing_yes_change_nothing(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    fill(hands, 3)

    told = shell.dlq("redrive", DEAD, "--dry-run", "--json", on=rabbit)
    unasked = shell.dlq("redrive", DEAD, on=rabbit)

    assert (0, 3) == (told.code, told.json["messages"])
    assert (2, True) == (unasked.code, "nothing was changed" in unasked.err)
    assert (3, 0) == (hands.ready(DEAD), hands.ready("orders"))


def test_one_that_was_sent_back_three_times_stays_unless_forced(
    rabbit: Rabbit, hands: Hands, shell: Shell, dead: str
) -> None:
    hands.publish(DEAD, b"again", headers={"x-original-queue": "orders", "x-redriven-count": 3})
    fill(hands, 1)

    first = shell.dlq("redrive", DEAD, "--yes", "--json", on=rabbit)
    forced = shell.dlq("redrive", DEAD, "--yes", "--force", "--json", on=rabbit)

    assert (1, 1, 1) == (first.code, first.json["moved"], first.json["failed"])
    assert (0, 1, 0) == (forced.code, forced.json["moved"], hands.ready(DEAD))


def test_what_fails_again_at_once_is_not_sent_in_circles(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    """Case RD-06. The target expires everything at once into the dead-letter queue."""
    hands.queue(
        "dies", {**CLASSIC, "x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    )
    fill(hands, 100, origin="dies")

    sent = shell.dlq("redrive", DEAD, "--yes", "--json", on=rabbit)

    assert (0, 100) == (sent.code, sent.json["moved"])
    hands.wait_for(DEAD, 100)
    assert {1} == {message.headers["x-redriven-count"] for message in hands.take_all(DEAD)}


def test_a_target_that_refuses_keeps_its_message_dead(rabbit: Rabbit, hands: Hands, shell: Shell, dead: str) -> None:
    """Case RD-02, F3."""
    hands.queue("full", {**CLASSIC, "x-max-length": 0, "x-overflow": "reject-publish"})
    for number in range(10):
        origin = "full" if number == 3 else "orders"
        hands.publish(DEAD, b"%d" % number, message_id=f"m{number}", headers={"x-original-queue": origin})

    first = shell.dlq("redrive", DEAD, "--yes", "--json", on=rabbit)
    hands.channel.queue_delete("full")
    hands.queue("full")
    second = shell.dlq("redrive", DEAD, "--yes", "--json", on=rabbit)

    assert (1, 9) == (first.code, first.json["moved"])
    assert ["m3"] == [each["message_id"] for each in first.json["stayed"]]
    assert (0, 1, 0) == (second.code, second.json["moved"], hands.ready(DEAD))
    assert ["m3"] == [each.properties.message_id for each in hands.take_all("full")]
    assert 9 == len(hands.take_all("orders"))


def test_a_target_that_is_gone_stops_the_redrive_and_is_not_made(
    rabbit: Rabbit, hands: Hands, shell: Shell, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case RD-03: deleted after four were moved."""
    monkeypatch.setattr("redrive.brokers.rabbitmq.in_place.WINDOW", 2)
    fill(hands, 10)
    shell.dlq("redrive", DEAD, "--limit", "4", "--yes", on=rabbit)
    moved = hands.take_all("orders")
    hands.channel.queue_delete("orders")

    failed = shell.dlq("redrive", DEAD, "--yes", "--json", on=rabbit)
    hands.queue("orders")
    resumed = shell.dlq("redrive", DEAD, "--yes", "--json", on=rabbit)

    assert (1, 0) == (failed.code, failed.json["moved"])
    assert '"orders" not found' in failed.json["error"]
    assert (0, 6) == (resumed.code, resumed.json["moved"])
    moved += hands.take_all("orders")
    # A quorum queue puts what was in hand of the failed run behind what came back before.
    assert sorted(f"m{number}" for number in range(10)) == sorted(each.properties.message_id for each in moved)


def test_the_retry_exchange_of_a_parked_queue_is_the_way_back(
    rabbit: Rabbit, hands: Hands, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "parked.py").write_text(
        "from redrive import Redrive, retry_per_queue\n"
        f'app = Redrive("parked", broker="{rabbit.url}", topology=retry_per_queue('
        '{"q.audit": {"domain.events": "#"}}, delay="1s"))\n'
    )
    applied = shell.run("topology", "apply", "parked:app", "--yes", "--management", rabbit.management_url)
    assert 0 == applied.code, applied.out + applied.err
    hands.publish("parking", b"with the app", exchange="dlq.q.audit", message_id="m1")
    known = shell.run("dlq", "redrive", "q.audit.dlq", "--in-place", "--app", "parked:app", "--yes", "--json")
    hands.publish("parking", b"by its names", exchange="dlq.q.audit", message_id="m2")
    recovered = shell.dlq("redrive", "q.audit.dlq", "--yes", "--json", on=rabbit)

    assert ({"q.audit": 1}, {"q.audit": 1}) == (known.json["targets"], recovered.json["targets"])
    hands.wait_for("q.audit", 2)
    found = hands.take_all("q.audit")
    assert [b"with the app", b"by its names"] == [message.body for message in found]
    assert {"q.audit.retry"} == {message.headers["x-death"][0]["queue"] for message in found}


# ---------------------------------------------------------------------------------------------------- killed

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from redrive.brokers.rabbitmq import in_place, session
from redrive.brokers.rabbitmq.journal import Journal
from redrive.brokers.rabbitmq.live import RabbitLive
from redrive.core.live import SendBack
from redrive.core.topology.model import EMPTY
from redrive.runtime.clock import SystemClock

url, queue, journal, point = sys.argv[1:5]
in_place.WINDOW = 10
calls = []

def dying(owner, name, *, at, when):
    known = getattr(owner, name)
    def die():
        calls.append(name)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
    if asyncio.iscoroutinefunction(known):
        async def wrapped(*given, **named):
            if when == "before": die()
            result = await known(*given, **named)
            if when == "after": die()
            return result
    else:
        def wrapped(*given, **named):
            if when == "before": die()
            result = known(*given, **named)
            if when == "after": die()
            return result
    setattr(owner, name, wrapped)

when, what = point.split(" ")
owner = {"nothing": None, "intend": Journal, "confirm": Journal, "finish": Journal, "publish": session.Session,
         "ack": session.ErrandChannel}[what]
if owner is not None:
    dying(owner, what, at=2, when=when)

async def run():
    live = RabbitLive(url, clock=SystemClock(), without_management=True, journal=Path(journal))
    await live.open()
    await live.send_back(queue, SendBack(actor="killed"), topology=EMPTY, on_count=lambda _: None)

asyncio.run(run())
"""

POINTS = (
    "before intend", "after intend", "after publish", "before confirm", "after confirm", "before ack", "after ack",
    "after finish",
)  # fmt: skip
SENT_TWICE = {"after publish", "before confirm"}
"""Between the broker's confirm and our record of it: the second copy has the same id."""


@pytest.mark.parametrize(
    ("point", "with_ids"),
    [*((point, False) for point in POINTS), ("after publish", True), ("before ack", True), ("after ack", True)],
)
def test_a_redrive_killed_anywhere_loses_nothing_and_sends_nothing_twice(  # noqa: PLR0917
    rabbit: Rabbit, hands: Hands, dead: str, tmp_path: Path, point: str, with_ids: bool
) -> None:
    """Case RD-02, F1, F2 and F4. Every second message has a twin: the same bytes, and no id to tell them apart."""
    for number in range(30):
        extra = {"message_id": f"m{number}"} if with_ids else {}
        hands.publish(DEAD, b"body %d" % (number // 2), headers={"x-original-queue": "orders"}, **extra)
    journal = tmp_path / "journal.db"
    command = [sys.executable, "-c", KILLED, rabbit.url, DEAD, str(journal)]

    killed = subprocess.run([*command, point], capture_output=True, text=True, check=False, timeout=120)
    again = subprocess.run([*command, "after nothing"], capture_output=True, text=True, check=False, timeout=120)

    assert (-9, "") == (killed.returncode, killed.stderr)
    assert 0 == again.returncode, again.stderr
    hands.wait_for(DEAD, 0)
    found = hands.take_all("orders")
    effects = {message.properties.message_id: message.body for message in found}
    assert sorted(b"body %d" % (number // 2) for number in range(30)) == sorted(effects.values())
    assert len(found) == (40 if point in SENT_TWICE else 30)
    with hands_on(rabbit) as other:
        assert 0 == other.ready(DEAD)
