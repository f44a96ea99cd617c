"""Systems B, C and D on a real RabbitMQ, 3.x and 4.x: names, dead letters, and attempts whatever `x-death` says."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from redrive import Delivery
from redrive.core.access import Role
from redrive.core.topology.model import Binding, Queue, Topology
from redrive.runtime.app import Redrive
from redrive.web.admin import Guard, admin_app
from redrive.web.admin.auth.tokens import TokenFile
from tests.push.endpoint import Reply, endpoint, replies
from tests.rabbit import Rabbit
from tests.systems.broker_view import BrokerView
from tests.systems.loading import example, running

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("event_bus", "freeflow", "file_pipeline")
CINCOUT, LABELS = "wms.queue.wms-cincout", "wms.queue.wms-labels"
LADDER = "redrive.delay."
PATIENCE_S = 90.0


@pytest.fixture
def broker(rabbit: Rabbit) -> BrokerView:
    return BrokerView(rabbit)


@pytest.fixture
def environment(rabbit: Rabbit, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "mail").mkdir()
    return {
        "REDRIVE_BROKER": rabbit.url,
        "REDRIVE_STORE": f"sqlite:///{tmp_path}/redrive.db",
        "FREEFLOW_MAIL": str(tmp_path / "mail"),
        "PIPELINE_FILES": str(tmp_path / "files"),
    }


async def assert_the_broker_has(broker: BrokerView, topology: Topology) -> None:
    """Exactly these durable exchanges, queues and bindings, the shared delay ladder aside."""
    exchanges, queues, bindings = await broker.exchanges(), await broker.queues(), await broker.bindings()
    own = {name: type_ for name, type_ in exchanges.items() if not name.startswith(LADDER)}
    assert {each.name: each.type for each in topology.exchanges} == own
    found = {name: arguments for name, arguments in queues.items() if not name.startswith(LADDER)}
    assert {each.name: dict(each.arguments) for each in topology.queues} == found
    assert {(each.source, each.destination, each.routing_key) for each in topology.bindings} == {
        each for each in bindings if not each[0].startswith(LADDER)
    }


@pytest.mark.parametrize("name", SYSTEMS)
async def test_starting_a_system_declares_it_letter_by_letter(
    name: str, broker: BrokerView, environment: dict[str, str]
) -> None:
    with example(name, **environment) as system:
        for _ in range(2):  # the second time it is all there
            async with system.app:
                await assert_the_broker_has(broker, system.app.topology)


@pytest.mark.parametrize(
    ("name", "variable"), [("event_bus", "BUS"), ("freeflow", "FREEFLOW"), ("file_pipeline", "PIPELINE")]
)
async def test_the_safe_form_has_the_same_names_and_quorum_queues(
    name: str, variable: str, broker: BrokerView, environment: dict[str, str]
) -> None:
    with example(name) as seed:
        names = {queue.name for queue in seed.app.topology.queues}
    with example(name, **environment, **{f"{variable}_SAFE": "1"}) as system:
        async with system.app:
            queues = await broker.queues()

    assert {"quorum"} == {queues[queue]["x-queue-type"] for queue in names}


# ------------------------------------------------------------------------------------------------ B


async def test_a_dead_event_lies_in_the_dead_letter_queue_with_its_headers(
    broker: BrokerView, environment: dict[str, str]
) -> None:
    async with endpoint(replies(Reply(status=503, body=b"down"))) as service:
        with example("event_bus", LABELS_URL=service.url, BUS_RETRY_DELAY_MS="50", **environment) as system:
            async with running(system.app) as run:
                body = b'{"sku": "A-1",  "kind": "check-in", "quantity": 5}'
                await broker.publish("wms.main-exchange", "", body, headers={"region": "eu"}, message_id="m-1")
                await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)

                assert 0 == await broker.depth(LABELS)
                dead, properties = await broker.take("wms.dlq.wms-labels")

    headers = properties.headers
    assert 11 == len(service.requests)
    assert (body, "m-1", "eu") == (dead, properties.message_id, headers["region"])
    assert (LABELS, 503, 10) == (
        headers["x-original-queue"],
        headers["x-final-status-code"],
        headers["x-final-retry-count"],
    )
    assert "x-final-error" not in headers
    assert {("rejected", LABELS, 10), ("expired", "wms.retry-queue.wms-labels", 10)} == {
        (each["reason"], each["queue"], each["count"]) for each in headers["x-redrive-deaths"]
    }


async def test_an_exception_is_named_on_the_dead_event(broker: BrokerView, environment: dict[str, str]) -> None:
    async with endpoint() as gone:
        url = gone.url
    with example("event_bus", LABELS_URL=url, BUS_RETRY_DELAY_MS="20", **environment) as system:
        async with running(system.app, LABELS) as run:
            await broker.publish("wms.main-exchange", "", b"{}")
            await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
            _, properties = await broker.take("wms.dlq.wms-labels")

    assert "Cannot connect" in properties.headers["x-final-error"]
    assert "x-final-status-code" not in properties.headers


AT = datetime(2026, 1, 1, tzinfo=UTC)
FORGED: dict[str, Any] = {
    "missing": None,
    "other queue": [{"queue": "elsewhere", "reason": "rejected", "count": 99, "exchange": "", "time": AT}],
    "expired only": [{"queue": LABELS, "reason": "expired", "count": 99, "exchange": "", "time": AT}],
    "overflow": [
        {"queue": LABELS, "reason": "maxlen", "count": 1, "exchange": "", "routing-keys": [LABELS], "time": AT},
        {"queue": "elsewhere", "reason": "rejected", "count": 1, "exchange": "", "routing-keys": ["x"], "time": AT},
    ],
    "no list": "rejected",
    "words": ["a", "b"],
    "numbers": [1, 2],
    "count as text": [{"queue": LABELS, "reason": "rejected", "count": "many", "exchange": "", "time": AT}],
    "empty": [],
}
"""None of them says that this queue rejected the message before."""


@pytest.mark.parametrize("what", FORGED)
async def test_b_stops_after_ten_retries_whatever_x_death_says(
    what: str, broker: BrokerView, environment: dict[str, str]
) -> None:
    """Case RC-01."""
    async with endpoint(replies(500)) as service:
        with example("event_bus", LABELS_URL=service.url, BUS_RETRY_DELAY_MS="20", **environment) as system:
            async with running(system.app, LABELS) as run:
                headers = {} if FORGED[what] is None else {"x-death": FORGED[what]}
                await broker.publish("", LABELS, b"{}", headers=headers, message_id="m-1")
                await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
                await broker.publish("", LABELS, b"{}", message_id="m-2")
                await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2, patience_s=PATIENCE_S)

                assert 2 == await broker.depth("wms.dlq.wms-labels")
    by_id = [request.headers["webhook-id"] for request in service.requests]
    assert (11, 11) == (by_id.count("m-1"), by_id.count("m-2"))


@pytest.mark.parametrize("count", [3, 10, 10**9])
async def test_b_a_forged_count_at_worst_ends_that_message_early(
    count: int, broker: BrokerView, environment: dict[str, str]
) -> None:
    async with endpoint(replies(500)) as service:
        with example("event_bus", LABELS_URL=service.url, BUS_RETRY_DELAY_MS="20", **environment) as system:
            async with running(system.app, LABELS) as run:
                deaths = [{"queue": LABELS, "reason": "rejected", "count": count, "exchange": "", "time": AT}]
                await broker.publish("", LABELS, b"{}", headers={"x-death": deaths}, message_id="m-1")
                await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
                (letter,) = await run.letters()

    assert len(service.requests) <= 11
    assert letter.reason.text


async def test_b_the_budget_after_a_redrive(broker: BrokerView, environment: dict[str, str]) -> None:
    async with endpoint(replies(500)) as service:
        with example("event_bus", LABELS_URL=service.url, BUS_RETRY_DELAY_MS="20", **environment) as system:
            async with running(system.app, LABELS) as run:
                await broker.publish("", LABELS, b"{}", message_id="m-1")
                await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
                first = len(service.requests)
                await run.redrive(LABELS)
                await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2, patience_s=PATIENCE_S)
                full = len(service.requests) - first
                await run.redrive(LABELS, keep_attempts=True)
                await run.until(lambda: len(run.named("delivery.dead_lettered")) == 3, patience_s=PATIENCE_S)
                kept = len(service.requests) - first - full

                assert 1 == await broker.depth("wms.dlq.wms-labels")
    assert (11, 11) == (first, full)
    assert kept <= 1


# ------------------------------------------------------------------------------------------------ C


async def test_c_a_retry_is_a_confirmed_copy_with_the_systems_headers(
    broker: BrokerView, environment: dict[str, str]
) -> None:
    with example("freeflow", FREEFLOW_TIME_SCALE="100", **environment) as system:
        async with running(system.app, "freeflow.user") as run:
            body = b'{"user":  "nobody", "to": "x"}'
            await broker.publish("freeflow.events", "user.renamed", body, message_id="m-1", correlation_id="c-1")
            await run.until(lambda: run.named("delivery.retry_scheduled"), patience_s=PATIENCE_S)

            waiting, properties = await broker.take("freeflow.user.retry.30s")

    headers = properties.headers
    assert (body, "m-1", "c-1") == (waiting, properties.message_id, properties.correlation_id)
    assert (1, "user.renamed", "freeflow.events") == (
        headers["x-retry-count"],
        headers["x-original-routing-key"],
        headers["x-original-exchange"],
    )


async def test_c_a_delay_that_is_no_tier_takes_the_next_longer_one_and_that_is_told(
    broker: BrokerView, environment: dict[str, str]
) -> None:
    with example("freeflow", FREEFLOW_TIME_SCALE="100", **environment) as system:
        async with running(system.app, "freeflow.workflow") as run:
            await broker.publish(
                "freeflow.events", "workflow.step", b'{"workflow": "w", "to": "review"}', message_id="m"
            )
            await run.until(lambda: run.named("delivery.delay_changed"), patience_s=PATIENCE_S)
            (changed,) = run.named("delivery.delay_changed")

            assert 1 == await broker.depth("freeflow.workflow.retry.5m")
    assert (12_000_000, 30_000_000) == (changed["asked_ms"], changed["delay_ms"])


async def test_b_a_service_that_asks_for_more_than_the_one_tier_gets_it_and_that_is_told(
    broker: BrokerView, environment: dict[str, str]
) -> None:
    busy = Reply(status=503, headers=((b"retry-after", b"3600"),))
    async with endpoint(replies(busy, 200)) as service:
        with example("event_bus", LABELS_URL=service.url, BUS_RETRY_DELAY_MS="50", **environment) as system:
            async with running(system.app, LABELS) as run:
                await broker.publish("", LABELS, b"{}")
                await run.until(lambda: run.processed(LABELS) == 1, patience_s=PATIENCE_S)
                (changed,) = run.named("delivery.delay_changed")

    assert (3_600_000, 50) == (changed["asked_ms"], changed["delay_ms"])


@pytest.mark.parametrize("what", ["missing", "no list", "words", "forged"])
async def test_c_goes_through_every_tier_and_then_to_the_dead_letter_queue(
    what: str, broker: BrokerView, environment: dict[str, str]
) -> None:
    queue = "freeflow.user"
    forged: dict[str, Any] = {
        "missing": {},
        "no list": {"x-death": "x"},
        "words": {"x-death": ["a"]},
        "forged": {"x-death": [{"queue": f"{queue}.retry.30s", "reason": "expired", "count": 99, "exchange": ""}]},
    }
    with example("freeflow", FREEFLOW_TIME_SCALE="0.0005", **environment) as system:
        async with running(system.app, queue) as run:
            await broker.publish(
                "freeflow.events",
                "user.renamed",
                b'{"user": "nobody", "to": "x"}',
                headers=forged[what],
                message_id="m-1",
            )
            await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
            retries = run.named("delivery.retry_scheduled")
            (letter,) = await run.letters()

            assert 1 == await broker.depth("freeflow.events.dlq")
            assert {0} == {await broker.depth(f"{queue}.retry.{tier}") for tier in ("30s", "5m", "30m")}
    assert [1, 2, 3] == [each["attempt"] for each in retries]
    assert [15, 150, 900] == [each["delay_ms"] for each in retries]
    assert {"user.renamed"} == {each["routing_key"] for each in retries}
    assert 4 == letter.attempt_count


async def test_c_the_budget_after_a_redrive(broker: BrokerView, environment: dict[str, str]) -> None:
    with example("freeflow", FREEFLOW_TIME_SCALE="0.0005", **environment) as system:
        async with running(system.app, "freeflow.user") as run:
            await broker.publish("freeflow.events", "user.renamed", b'{"user": "a", "to": "b"}', message_id="m-1")
            await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
            assert 1 == await broker.depth("freeflow.events.dlq")
            await run.redrive("freeflow.user")
            await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2, patience_s=PATIENCE_S)
            full = len(run.named("delivery.retry_scheduled"))
            await run.redrive("freeflow.user", keep_attempts=True)
            await run.until(lambda: len(run.named("delivery.dead_lettered")) == 3, patience_s=PATIENCE_S)

            assert {"user.renamed"} == {each["routing_key"] for each in run.named("delivery.retry_scheduled")}
            assert 1 == await broker.depth("freeflow.events.dlq"), "what was sent back is no longer there"
    assert 6 == full
    assert 6 == len(run.named("delivery.retry_scheduled"))


async def test_c_every_queue_bound_to_a_domain_gets_the_retry_and_handles_the_event_once(
    broker: BrokerView, environment: dict[str, str]
) -> None:
    """The trap of this topology: a second consumer group on `user.*` sees the other's retries."""
    seen: list[str] = []

    async def follow(event: dict[str, Any], delivery: Delivery) -> None:
        seen.append(delivery.message.id)

    with example("freeflow", FREEFLOW_TIME_SCALE="0.0005", **environment) as system:
        app = system.app
        app.topology = app.topology + Topology(
            queues=(Queue(name="other.user", arguments={"x-queue-type": "classic"}),),
            bindings=(Binding(source="freeflow.events", destination="other.user", routing_key="user.*"),),
        )
        app.consumer("other.user")(follow)
        async with running(app, "freeflow.user", "other.user") as run:
            await broker.publish("freeflow.events", "user.renamed", b'{"user": "a", "to": "b"}', message_id="m-1")
            await run.until(
                lambda: run.named("delivery.dead_lettered") and len(run.named("delivery.duplicate")) == 3,
                patience_s=PATIENCE_S,
            )

    assert ["m-1"] == seen


# ------------------------------------------------------------------------------------------------ D


def reprocess(file_id: str) -> bytes:
    return json.dumps({"fileId": file_id, "name": "notes.txt"}).encode()


@pytest.mark.parametrize("what", ["missing", "words", "other queue", "expired only", "empty"])
async def test_d_parks_after_three_runs_and_the_parked_copy_shows_two_rejections(
    what: str, broker: BrokerView, environment: dict[str, str]
) -> None:
    queue = "q.upload.commands"
    with example("file_pipeline", PIPELINE_RETRY_DELAY_MS="50", **environment) as system:
        async with running(system.app, queue) as run:
            headers = {} if FORGED[what] is None else {"x-death": FORGED[what]}
            await broker.publish(
                "domain.commands",
                "commands.file.reprocess.f1",
                reprocess("f1"),
                headers=headers,
                message_id="m-1",
                correlation_id="c-1",
                type="reprocess",
            )
            await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
            told = run.named("delivery.retry_scheduled") + run.named("delivery.dead_lettered")
            parked, properties = await broker.take(f"{queue}.dlq")

    assert [1, 2, 3] == [each["attempt"] for each in told]
    assert {("c-1", "reprocess", "commands.file.reprocess.f1")} == {
        (each["correlation_id"], each["type"], each["routing_key"]) for each in told
    }
    assert (reprocess("f1"), "m-1", "c-1") == (parked, properties.message_id, properties.correlation_id)
    if what == "missing":
        assert [2] == [
            each["count"]
            for each in properties.headers["x-redrive-deaths"]
            if (each["queue"], each["reason"]) == (queue, "rejected")
        ]


async def test_d_the_budget_after_a_redrive(broker: BrokerView, environment: dict[str, str]) -> None:
    queue = "q.upload.commands"
    with example("file_pipeline", PIPELINE_RETRY_DELAY_MS="50", **environment) as system:
        async with running(system.app, queue) as run:
            await broker.publish("domain.commands", "commands.upload.f", reprocess("f1"), message_id="m-1")
            await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)
            await run.redrive(queue)
            await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2, patience_s=PATIENCE_S)
            await run.redrive(queue, keep_attempts=True)
            await run.until(lambda: len(run.named("delivery.dead_lettered")) == 3, patience_s=PATIENCE_S)
            letters = await run.letters()

            assert 1 == await broker.depth(f"{queue}.dlq")
    assert 2 + 2 == len(run.named("delivery.retry_scheduled"))
    assert [3, 3] == [letter.attempt_count for letter in letters][:2]


class Operator:
    """Whoever asks the system's admin API. *Source*: system D, Admin API."""

    def __init__(self, app: Redrive, folder: Path, *, management: str | None = None) -> None:
        tokens = TokenFile(folder / "tokens.toml")
        self._secrets = {role: tokens.add(f"ada-{role}", role, created_at="") for role in Role}
        self._api = admin_app(app, guard=Guard(app.clock, app.events, tokens=tokens), management=management)

    async def ask(self, method: str, path: str, body: Any = None, *, role: Role | None = Role.ADMIN) -> tuple[int, Any]:
        headers = {} if role is None else {"authorization": f"Bearer {self._secrets[role]}"}
        transport = httpx.ASGITransport(self._api)
        async with httpx.AsyncClient(transport=transport, base_url="http://system") as client:
            answer = await client.request(method, f"/admin/dlq/queues{path}", headers=headers, json=body)
        return answer.status_code, answer.json()


async def test_d_operators_list_look_at_and_send_back_what_is_parked(
    rabbit: Rabbit, broker: BrokerView, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redrive enters through `retry.q.X` and is not charged as an attempt."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    queue, parked = "q.upload.commands", "q.upload.commands.dlq"
    with example("file_pipeline", PIPELINE_RETRY_DELAY_MS="50", **environment) as system:
        admin = Operator(system.app, tmp_path, management=rabbit.management_url)
        async with running(system.app, queue) as run:
            for number in range(5):
                await broker.publish(
                    "domain.commands",
                    "commands.upload.f",
                    reprocess("f1"),
                    message_id=f"m-{number}",
                    correlation_id="c",
                )
            await run.until(lambda: len(run.named("delivery.dead_lettered")) == 5, patience_s=PATIENCE_S)

            _, found = await admin.ask("GET", "")
            listed = {each["queue"]: each["depth"] for each in found}
            looked = [(await admin.ask("GET", f"/{parked}/messages?limit=3"))[1] for _ in range(3)]
            _, sent = await admin.ask("POST", f"/{parked}/re-drive", {"limit": 2})
            await run.until(lambda: len(run.named("delivery.dead_lettered")) == 7, patience_s=PATIENCE_S)
            system.storage.path("f1").parent.mkdir(parents=True)
            system.storage.path("f1").write_bytes(b"hello")
            _, rest = await admin.ask("POST", f"/{parked}/re-drive")
            await run.until(lambda: run.processed(queue) == 5, patience_s=PATIENCE_S)

            assert 0 == await broker.depth(parked)
    assert {f"{name}.dlq": 5 if name == queue else 0 for name in system.HANDLERS} == listed
    order = [[each["message_id"] for each in look["messages"]] for look in looked]
    assert [order[0]] * 3 == order
    (first, *_) = looked[0]["messages"]
    assert ("FILE_NOT_THERE_EXHAUSTED", 3, queue) == (first["reason_code"], first["attempts"], first["queue"])
    assert "c" == first["properties"]["correlation_id"]
    assert (2, 2, 0) == (sent["requested"], sent["moved"], sent["failed"])
    assert (5, 0) == (rest["moved"], rest["failed"])
    attempts = [each["attempt"] for each in run.named("delivery.retry_scheduled")]
    assert (7, 7) == (attempts.count(1), attempts.count(2))


@pytest.mark.parametrize(
    ("queue", "limit"), [("q.audit", 5), ("orders.dlq", 5), ("q.audit.dlq", 0), ("q.audit.dlq", 101)]
)
async def test_d_operators_reach_parking_queues_only_and_a_hundred_at_a_time(
    queue: str, limit: int, tmp_path: Path
) -> None:
    with example("file_pipeline", REDRIVE_BROKER="amqp://127.0.0.1:1/") as system:
        admin = Operator(system.app, tmp_path)
        expected = 422 if queue.endswith(".dlq") and not 1 <= limit <= 100 else 404

        assert expected == (await admin.ask("GET", f"/{queue}/messages?limit={limit}"))[0]
        # The broker is away from the start: a write that could not be recorded is not even looked at.
        refused = 503 if expected == 404 else expected
        assert refused == (await admin.ask("POST", f"/{queue}/re-drive", {"limit": limit}))[0]
        assert 403 == (await admin.ask("GET", "", role=Role.OPERATOR))[0]
        assert 401 == (await admin.ask("GET", "", role=None))[0]


@pytest.mark.parametrize(
    ("name", "where", "expected"),
    [
        ("event_bus", ("wms.main-exchange", "", "wms.queue.wms-cincout", "wms.dlq.wms-cincout"), 10),
        ("freeflow", ("freeflow.events", "user.renamed", "freeflow.user", "freeflow.events.dlq"), 3),
        ("file_pipeline", ("domain.commands", "commands.upload.f", "q.upload.commands", "q.upload.commands.dlq"), 2),
    ],
)
async def test_the_safe_form_counts_the_same(
    name: str, where: tuple[str, str, str, str], expected: int, broker: BrokerView, environment: dict[str, str]
) -> None:
    exchange, key, queue, dead = where
    variables = {"BUS_SAFE": "1", "FREEFLOW_SAFE": "1", "PIPELINE_SAFE": "1"}
    variables |= {"BUS_RETRY_DELAY_MS": "50", "FREEFLOW_TIME_SCALE": "0.0005", "PIPELINE_RETRY_DELAY_MS": "50"}
    body = b'{"sku": "A", "kind": "check-out", "quantity": 1, "user": "a", "to": "b", "fileId": "f", "name": "f.txt"}'
    with example(name, **environment, **variables) as system:
        async with running(system.app, queue) as run:
            await broker.publish(exchange, key, body, message_id="m-1")
            await run.until(lambda: run.named("delivery.dead_lettered"), patience_s=PATIENCE_S)

            assert 1 == await broker.depth(dead)
    assert list(range(1, expected + 1)) == [each["attempt"] for each in run.named("delivery.retry_scheduled")]


async def test_d_the_brokers_own_import_makes_what_the_app_would_declare(
    rabbit: Rabbit, broker: BrokerView, environment: dict[str, str]
) -> None:
    script = ROOT / "examples" / "file_pipeline" / "infra" / "rabbitmq" / "import-definitions.sh"
    command = [str(script), rabbit.management_url, rabbit.vhost.name]

    first = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    assert (0, 0) == (first.returncode, again.returncode), first.stdout + first.stderr + again.stderr
    with example("file_pipeline", **environment) as system:
        await assert_the_broker_has(broker, system.app.topology)
        async with system.app:
            await assert_the_broker_has(broker, system.app.topology)


async def test_d_an_import_that_left_a_queue_as_it_was_is_told(rabbit: Rabbit) -> None:
    """The broker answers 204 to that, too."""
    script = ROOT / "examples" / "file_pipeline" / "infra" / "rabbitmq" / "import-definitions.sh"
    arguments = {"x-queue-type": "classic", "x-message-ttl": 60_000}
    rabbit.server.api(
        "PUT", f"/api/queues/{rabbit.vhost.name}/q.audit.retry", {"durable": True, "arguments": arguments}
    )

    done = subprocess.run(
        [str(script), rabbit.management_url, rabbit.vhost.name],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert 1 == done.returncode
    assert "queue q.audit.retry: arguments is" in done.stdout
