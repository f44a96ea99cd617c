"""`redrive topology` against real brokers: show, verify, plan, apply, migrate, export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rabbit import Rabbit, RabbitAlone
from tests.rabbitmq.by_hand import CLASSIC, Hands, Ran, Shell, hands_on, unlimited

APP = """
from redrive import Redrive, retry_per_queue
app = Redrive("shop", broker={url!r}, topology=retry_per_queue({queues!r}, delay={delay!r}))
"""
QUEUES = {"q.audit": {"domain.events": "#"}, "q.upload": {"domain.commands": ["upload.#", "redo.*"]}}


def write_app(shell: Shell, rabbit: Rabbit, *, delay: str = "15s") -> None:
    (shell.folder / "shop.py").write_text(APP.format(url=rabbit.url, queues=QUEUES, delay=delay))


def topology(shell: Shell, verb: str, *arguments: str, on: Rabbit) -> Ran:
    return shell.run("topology", verb, "shop:app", *arguments, "--management", on.management_url)


# ---------------------------------------------------------------------------------------------------- plan and apply


def test_a_plan_names_what_is_missing_and_an_apply_declares_it_once(rabbit: Rabbit, shell: Shell) -> None:
    write_app(shell, rabbit)

    before = topology(shell, "plan", "--json", on=rabbit)
    applied = topology(shell, "apply", "--yes", "--json", on=rabbit)
    after = topology(shell, "plan", "--json", on=rabbit)
    again = topology(shell, "apply", "--yes", "--json", on=rabbit)

    assert (1, {"+"}) == (before.code, {step["mark"] for step in before.json["steps"]})
    assert (0, True, []) == (applied.code, applied.json["clean"], applied.json["steps"])
    assert (0, True, []) == (after.code, after.json["clean"], after.json["steps"])
    assert (0, []) == (again.code, again.json["applied"])


def test_a_dry_run_and_a_missing_yes_declare_nothing(rabbit: Rabbit, shell: Shell) -> None:
    write_app(shell, rabbit)

    dry = topology(shell, "apply", "--dry-run", on=rabbit)
    unasked = topology(shell, "apply", on=rabbit)

    assert (1, 2) == (dry.code, unasked.code)
    assert [] == rabbit.server.api("GET", f"/api/queues/{rabbit.vhost.name}")


def test_amqp_alone_is_enough_to_apply(rabbit: Rabbit, shell: Shell) -> None:
    write_app(shell, rabbit)

    applied = topology(shell, "apply", "--yes", "--no-management", "--json", on=rabbit)
    checked = topology(shell, "plan", "--json", on=rabbit)

    assert (0, False) == (applied.code, applied.json["complete"])
    assert "bindings are taken to be as wanted" in applied.json["notes"][0]
    assert (0, []) == (checked.code, checked.json["steps"])


def test_amqp_alone_finds_every_argument_that_differs(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    hands.queue("q.audit.retry", {**CLASSIC, "x-message-ttl": 1_000, "x-dead-letter-exchange": "other"})
    write_app(shell, rabbit)

    planned = topology(shell, "plan", "--no-management", "--json", on=rabbit)

    (drift,) = [step for step in planned.json["steps"] if step["drift"]]
    found = {each["setting"]: (each["have"], each["want"]) for each in drift["differences"]}
    assert {
        "x-message-ttl": (1_000, 15_000),
        "x-dead-letter-exchange": ("other", ""),
        "x-dead-letter-routing-key": (None, "q.audit"),
    } == found


# ---------------------------------------------------------------------------------------------------- migrate


def test_a_queue_that_is_there_with_other_arguments_is_shown_never_forced_and_migrated_on_request(
    rabbit: Rabbit, hands: Hands, shell: Shell
) -> None:
    """Case TP-03. Of the missing queues none is declared where one is in the way."""
    waits = {**CLASSIC, "x-message-ttl": 3_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    want = {**waits, "x-message-ttl": 4_500}
    definitions = {
        "queues": [
            {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": arguments}
            for name, arguments in (("orders.retry.30s", want), ("orders", CLASSIC), ("orders.dead", CLASSIC))
        ]
    }
    (shell.folder / "wanted.json").write_text(json.dumps(definitions))
    there = ("wanted.json", "--broker", rabbit.url, "--management", rabbit.management_url)
    # It empties itself: shorter than its name says, so that nobody waits half a minute.
    hands.queue("orders.retry.30s", waits)
    for number in range(3):
        hands.publish("orders.retry.30s", b"%d" % number, message_id=f"m{number}")

    planned = shell.run("topology", "plan", *there, "--json")
    refused = shell.run("topology", "apply", *there, "--yes")
    names = {queue["name"] for queue in rabbit.server.api("GET", f"/api/queues/{rabbit.vhost.name}")}
    migrated = shell.run("topology", "apply", *there, "--migrate", "--yes")

    (drift,) = [step for step in planned.json["steps"] if step["drift"]]
    assert (1, "orders.retry.30s") == (planned.code, drift["name"])
    assert [{"setting": "x-message-ttl", "have": 3_000, "want": 4_500}] == drift["differences"]
    assert (1, True) == (refused.code, "x-message-ttl: have 3000, want 4500" in refused.err)
    assert {"orders.retry.30s"} == names
    assert 0 == migrated.code, migrated.out + migrated.err
    hands.wait_for("orders", 3)
    assert {"m0", "m1", "m2"} == {message.properties.message_id for message in hands.take_all("orders")}
    assert 0 == shell.run("topology", "plan", *there).code


def test_a_work_queue_is_replaced_with_all_its_messages(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    hands.queue("q.audit", CLASSIC)
    for number in range(120):
        headers = {"x-death": [{"queue": "q.audit", "reason": "rejected", "count": 2}]} if number < 10 else {}
        hands.publish("q.audit", b"%d" % (number // 2), headers=headers)
    write_app(shell, rabbit)

    migrated = topology(shell, "apply", "--migrate", "--yes", on=rabbit)

    assert 0 == migrated.code, migrated.out + migrated.err
    found = hands.take_all("q.audit")
    assert sorted(b"%d" % (number // 2) for number in range(120)) == sorted(message.body for message in found)
    assert 10 == sum(message.headers.get("x-redrive-attempt") == 3 for message in found)
    assert 0 == topology(shell, "plan", on=rabbit).code


KILLED = """
import os, signal, sys
from redrive.brokers.rabbitmq import applying
from redrive.cli import entry

left = int(sys.argv[1])
carry_out = applying.Applier._carry_out

async def dying(self, step):
    global left
    await carry_out(self, step)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

applying.Applier._carry_out = dying
sys.exit(entry.run(sys.argv[2:]))
"""


@pytest.mark.parametrize("steps", range(1, 11))
def test_a_migration_killed_after_any_step_goes_on_where_it_was(
    rabbit: Rabbit, hands: Hands, shell: Shell, steps: int
) -> None:
    hands.queue("q.audit", CLASSIC)
    hands.channel.exchange_declare("domain.events", "topic", durable=True)
    hands.channel.queue_bind("q.audit", "domain.events", "#")
    for number in range(20):
        hands.publish("q.audit", b"%d" % number)
    write_app(shell, rabbit)
    migrate = ("topology", "apply", "shop:app", "--migrate", "--yes", "--management", rabbit.management_url)

    command = [sys.executable, "-c", KILLED, str(steps), *migrate]
    killed = subprocess.run(command, cwd=shell.folder, capture_output=True, text=True, check=False, timeout=180)
    hands.publish("meanwhile", b"20", exchange="domain.events")
    finished = shell.run(*migrate)

    assert -9 == killed.returncode, killed.stdout + killed.stderr
    assert 0 == finished.code, finished.out + finished.err
    assert {b"%d" % number for number in range(21)} == {message.body for message in hands.take_all("q.audit")}
    assert 0 == topology(shell, "plan", on=rabbit).code


def test_a_queue_somebody_reads_is_not_deleted_and_nothing_is_lost(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    hands.queue("q.audit", CLASSIC)
    hands.publish("q.audit", b"1")
    write_app(shell, rabbit)
    with hands_on(rabbit) as reader:
        # It reads nothing, but it is there.
        reader.channel.basic_qos(prefetch_count=1)
        reader.channel.basic_consume("q.audit", lambda *_: None, arguments={"x-priority": -1})
        hands.publish("q.audit", b"2")

        refused = topology(shell, "apply", "--migrate", "--yes", on=rabbit)

    assert (2, True) == (refused.code, "is not deleted" in refused.err)
    again = topology(shell, "apply", "--migrate", "--yes", on=rabbit)
    assert 0 == again.code, again.err
    assert {b"1", b"2"} == {message.body for message in hands.take_all("q.audit")}


# ---------------------------------------------------------------------------------------------------- export


def test_an_export_imported_by_the_brokers_own_tool_leaves_nothing_to_plan(
    rabbit_alone: RabbitAlone, shell: Shell
) -> None:
    """Case TP-05."""
    write_app(shell, rabbit_alone)
    version = rabbit_alone.version
    file = shell.folder / "definitions.json"

    first = topology(shell, "export", "--broker-version", version, "-o", str(file), on=rabbit_alone)
    second = topology(shell, "export", "--broker-version", version, on=rabbit_alone)
    at_home = (
        file.read_text()
        .replace('"vhost": "/"', f'"vhost": "{rabbit_alone.vhost.name}"')
        .replace('"name": "/"', f'"name": "{rabbit_alone.vhost.name}"')
    )
    rabbit_alone.node.import_definitions(at_home)
    planned = topology(shell, "plan", "--json", on=rabbit_alone)
    from_broker = [
        shell.run("topology", "export", rabbit_alone.url, "--management", rabbit_alone.management_url) for _ in range(2)
    ]

    assert (0, 0) == (first.code, second.code)
    assert file.read_text() == second.out
    assert (0, []) == (planned.code, planned.json["steps"])
    assert from_broker[0].out == from_broker[1].out
    assert {each["name"] for each in json.loads(second.out)["queues"]} == {
        each["name"] for each in json.loads(from_broker[0].out)["queues"]
    }


# ---------------------------------------------------------------------------------------------------- show and verify


def test_a_live_broker_is_shown_and_verified(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    hands.queue("orders", {**CLASSIC, "x-dead-letter-exchange": "nowhere"})

    shown = shell.run("topology", "show", rabbit.url, "--management", rabbit.management_url, "--json")
    verified = shell.run("topology", "verify", rabbit.url, "--management", rabbit.management_url, "--json")
    lenient = shell.run("topology", "verify", rabbit.url, "--management", rabbit.management_url, "--fail-on", "never")

    assert "orders" in {row["name"] for row in shown.json["rows"]}
    assert 1 == verified.code
    assert rabbit.version == verified.json["version"]
    assert any("nowhere" in finding["story"] for finding in verified.json["findings"])
    assert (0, True) == (lenient.code, "nowhere" in lenient.out)


@pytest.mark.parametrize("source", ["shop:app", "shop.json"])
def test_show_draws_the_same_picture_of_an_app_and_of_its_file(shell: Shell, source: str) -> None:
    (shell.folder / "shop.py").write_text(APP.format(url="amqp://localhost", queues=QUEUES, delay="15s"))
    shell.run("topology", "export", "shop:app", "-o", "shop.json")

    drawn = shell.run("topology", "show", source, "--mermaid")
    told = shell.run("topology", "show", source)

    assert (0, "flowchart LR") == (drawn.code, drawn.out.splitlines()[0])
    assert (0, True) == (told.code, "q.audit.retry" in told.out)


def test_errors_end_with_two_and_findings_with_one(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")

    codes = {
        "no file": shell.run("topology", "verify", "nowhere.json").code,
        "no JSON": shell.run("topology", "verify", "broken.json").code,
        "no broker": shell.run("topology", "plan", "broken.json").code,
        "away": shell.run("topology", "show", "amqp://guest:secret@127.0.0.1:1/?connection_timeout=1").code,
    }

    assert set(codes.values()) == {2}, codes


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "amqp://u:s3cret@[::1/x"),
        ("show", "amqp://"),
        ("plan", "empty.json", "--broker", "amqp://u:s3cret@[::1/x"),
        ("verify", "amqp://u@localhost", "--management", "http://u:s3cret@127.0.0.1:99999"),
        ("verify", "amqp://u@localhost", "--management", "http://[::1"),
    ],
)
def test_a_url_that_is_none_is_told_and_is_no_finding(shell: Shell, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "empty.json").write_text("{}")

    told = shell.run("topology", *arguments, "--json")

    assert (2, "") == (told.code, told.out)
    assert "config" in json.loads(told.err)["error"]["code"], told.err
    assert "s3cret" not in told.err


def test_an_apply_that_is_refused_halfway_says_what_was_and_what_was_not_done(rabbit: Rabbit, shell: Shell) -> None:
    write_app(shell, rabbit)
    vhost = rabbit.vhost
    may = {"configure": ".*", "write": "^(?!q[.])", "read": ".*"}
    rabbit.server.api("PUT", f"/api/permissions/{vhost.name}/{vhost.user}", may)

    refused = topology(shell, "apply", "--yes", on=rabbit)

    names = {queue["name"] for queue in rabbit.server.api("GET", f"/api/queues/{vhost.name}")}
    assert (2, True) == (refused.code, "What was done before it stays." in refused.err), refused.err
    assert names == {line.rpartition(" ")[2] for line in refused.err.splitlines() if line.startswith("+ queue")}
    assert "+ binding" not in refused.err
    assert 'The binding of "' in refused.err
    assert f"Give the user permission {'to write' if rabbit.major > 3 else 'for'} queue 'q." in refused.err


def test_no_password_is_ever_shown(shell: Shell) -> None:
    told = shell.run("topology", "plan", "amqp://guest:s3cret@127.0.0.1:1/", "--broker", "amqp://u:s3cret@127.0.0.1:1/")
    bad = shell.run("topology", "show", "amqp://u:s3cret@127.0.0.1:1/", "--management", "ftp://u:s3cret@x")

    assert (2, 2) == (told.code, bad.code)
    assert "s3cret" not in told.out + told.err + bad.out + bad.err


def test_a_user_without_the_tag_is_told_which_one_it_needs(rabbit: Rabbit, shell: Shell) -> None:
    user = rabbit.vhost.user
    rabbit.server.api("PUT", f"/api/users/{user}", {"password": rabbit.vhost.password, "tags": ""})
    write_app(shell, rabbit)

    refused = topology(shell, "plan", on=rabbit)
    alone = topology(shell, "plan", "--no-management", on=rabbit)

    assert (2, True) == (refused.code, f"set_user_tags {user} management" in refused.err)
    assert 1 == alone.code


def test_a_user_with_the_tag_management_is_enough(rabbit: Rabbit, hands: Hands, shell: Shell) -> None:
    user = {"password": rabbit.vhost.password, "tags": "management"}
    rabbit.server.api("PUT", f"/api/users/{rabbit.vhost.user}", user)
    hands.queue("orders.dead", unlimited(rabbit))
    write_app(shell, rabbit)

    applied = topology(shell, "apply", "--yes", on=rabbit)
    peeked = shell.dlq("peek", "orders.dead", on=rabbit)

    assert (0, 0) == (applied.code, peeked.code), applied.err + peeked.err
