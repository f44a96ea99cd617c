"""Ready topologies: a bus with services, tiers per domain, a retry queue per queue, and any delay.

Each recipe gives exchanges, queues, bindings and the wirings by which redrive retries and dead-letters on its queues.
Add them with `+`; give the sum to `Redrive(topology=…)` or to `redrive topology`.

Three of them describe topologies that are in use, letter by letter: classic queues, out of which a broker moves
messages without making sure that they arrive. A broker that is killed can lose what it was moving. `safe=True` keeps
every name and makes the queues quorum queues with at-least-once dead-lettering: nothing is lost then, and a message may
take up to three minutes longer after a crash of the broker. A queue that exists cannot change
its type in place; see `redrive topology plan`.

All raise `ConfigurationError` for a name no broker takes (more than 255 bytes with its suffix, empty, "amq.…") or a
delay that is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from redrive.core.topology.ladder import SAFE, ladder
from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.core.topology.names import check_names
from redrive.core.topology.wiring import (
    DeadLetterRoute,
    LadderRetry,
    RejectRetry,
    Tier,
    TierRetry,
    Wiring,
)
from redrive.core.units import MAX_DELAY_MS, Duration, Millis, duration_ms
from redrive.errors import ConfigurationError

RETRY: Final = "retry"
PARKING: Final = "parking"

Keys: TypeAlias = "str | Iterable[str]"
Tiers: TypeAlias = "Mapping[str, Duration] | Sequence[str]"


def fanout_bus(*services: str, prefix: str | None = None, delay: Duration = "5s", safe: bool = False) -> Topology:
    """One fanout exchange for all services; each has its queue, its retry queue and its dead-letter queue.

    A failed message waits `delay` and comes back to the service that failed only. `prefix`: first part of every name;
    None takes a service's name before its first hyphen ("wms-cincout": "wms"; without a hyphen "default").
    Publish to the exchange `<prefix>.main-exchange`; consume from `<prefix>.queue.<service>`.

        fanout_bus("wms-cincout", "wms-labels")
    """
    delay_ms = _delay(delay, "fanout_bus: delay")
    _some(services, "fanout_bus", "service")
    return _checked(_service(service, prefix or _prefix(service), delay_ms, safe=safe) for service in services)


def _prefix(service: str) -> str:
    head, hyphen, _ = service.partition("-")
    return head if hyphen and head else "default"


def _service(service: str, prefix: str, delay_ms: Millis, *, safe: bool) -> Topology:
    main, retry = f"{prefix}.main-exchange", f"{prefix}.retry-exchange.{service}"
    queue, back, dead = f"{prefix}.queue.{service}", f"{prefix}.retry-queue.{service}", f"{prefix}.dlq.{service}"
    names = {
        "queue": "x-original-queue",
        "status_code": "x-final-status-code",
        "error": "x-final-error",
        "retry_count": "x-final-retry-count",
    }
    return Topology(
        exchanges=(Exchange(name=main, type="fanout"), Exchange(name=retry)),
        queues=(
            _queue(queue, safe=safe, to=retry, key=RETRY),
            _queue(back, safe=safe, to="", key=queue, ttl_ms=delay_ms),
            _queue(dead, safe=safe),
        ),
        bindings=(
            Binding(source=main, destination=queue),
            Binding(source=retry, destination=back, routing_key=RETRY),
        ),
        wirings=(
            Wiring(
                queue=queue,
                retry=RejectRetry(delay_ms=delay_ms),
                dead_letter=DeadLetterRoute(exchange="", routing_key=dead, headers=names),
                dead_letter_queue=dead,
                waits_locally=True,
            ),
        ),
    )


def tiered_retry(
    system: str,
    *,
    domains: Sequence[str],
    tiers: Tiers = ("30s", "5m", "30m"),
    events: str | None = None,
    safe: bool = False,
) -> Topology:
    """A topic exchange with one queue per domain, a retry queue per domain and tier, and one dead-letter queue.

    `tiers`: a delay by the name of its tier, or texts that are both. `events`: name of the exchange; None takes
    `<system>.events`. Publish to it with `<domain>.<what>`; consume from `<system>.<domain>`.

    In the form that is in use a retry comes back through the exchange, to every queue bound to `<domain>.*`; and a
    dead message is rejected. With `safe=True` it comes back to the queue that failed and to no other, a dead message is
    published and confirmed, and a retry for a tier that is not there lies in the dead-letter queue.

        tiered_retry("freeflow", domains=["user", "auth"], tiers={"soon": "30s", "later": "5m"})
    """
    delays = _tiers(tiers)
    _some(domains, "tiered_retry", "domain")
    main = f"{system}.events" if events is None else events
    retry, dead, dead_queue = f"{main}.retry", f"{main}.dlx", f"{main}.dlq"
    shared = Topology(
        exchanges=(
            Exchange(name=main, type="topic"),
            Exchange(name=retry, arguments={"alternate-exchange": dead} if safe else {}),
            Exchange(name=dead, type="fanout"),
        ),
        queues=(_queue(dead_queue, safe=safe),),
        bindings=(Binding(source=dead, destination=dead_queue),),
    )
    parts = (_domain(f"{system}.{domain}", domain, main, delays=delays, safe=safe) for domain in domains)
    return _checked((shared, *parts))


def _domain(queue: str, domain: str, main: str, *, delays: Mapping[str, Millis], safe: bool) -> Topology:
    retry, dead = f"{main}.retry", f"{main}.dlx"
    back, key = ("", queue) if safe else (main, f"{domain}.{RETRY}")
    waits = [
        (_queue(f"{queue}.retry.{tier}", safe=safe, to=back, key=key, ttl_ms=delay_ms), f"{domain}.{tier}", delay_ms)
        for tier, delay_ms in delays.items()
    ]
    return Topology(
        queues=(_queue(queue, safe=safe, to=dead), *(wait for wait, _, _ in waits)),
        bindings=(
            Binding(source=main, destination=queue, routing_key=f"{domain}.*"),
            *(Binding(source=retry, destination=wait.name, routing_key=tier) for wait, tier, _ in waits),
        ),
        wirings=(
            Wiring(
                queue=queue,
                retry=TierRetry(
                    exchange=retry,
                    tiers=tuple(Tier(delay_ms=delay_ms, routing_key=tier) for _, tier, delay_ms in waits),
                    count_header="x-retry-count",
                    routing_key_header="x-original-routing-key",
                    exchange_header="x-original-exchange",
                ),
                dead_letter=DeadLetterRoute(exchange=dead, routing_key="", by_reject=not safe),
                dead_letter_queue=f"{main}.dlq",
            ),
        ),
    )


def _tiers(tiers: Tiers) -> dict[str, Millis]:
    named = tiers if isinstance(tiers, Mapping) else {tier: tier for tier in tiers}
    found = {name: _delay(delay, f"tiered_retry: tier {name!r}") for name, delay in named.items()}
    _some(found, "tiered_retry", "tier")
    return dict(sorted(found.items(), key=lambda tier: tier[1]))


def retry_per_queue(
    queues: Mapping[str, Mapping[str, Keys]],
    *,
    delay: Duration = "15s",
    safe: bool = False,
) -> Topology:
    """For each queue a retry queue with a fixed delay and a parking queue, each behind an exchange of its own.

    `queues`: the topic exchanges a queue is bound to, and with which keys. For a queue Q: exchange `retry.Q` and queue
    `Q.retry` (binding key "retry"), exchange `dlq.Q` and queue `Q.dlq` (binding key "parking"). A dead message is
    published to `dlq.Q`; who moves it back publishes it to `retry.Q`.

        retry_per_queue({"q.audit": {"domain.events": "#"}, "q.upload": {"domain.commands": ["upload.#", "redo.*"]}})
    """
    delay_ms = _delay(delay, "retry_per_queue: delay")
    _some(queues, "retry_per_queue", "queue")
    return _checked(_parked(queue, bound, delay_ms, safe=safe) for queue, bound in queues.items())


def _parked(queue: str, bound: Mapping[str, Keys], delay_ms: Millis, *, safe: bool) -> Topology:
    retry, parking = f"retry.{queue}", f"dlq.{queue}"
    back, dead = f"{queue}.retry", f"{queue}.dlq"
    return Topology(
        exchanges=(
            *(Exchange(name=source, type="topic") for source in bound),
            Exchange(name=retry),
            Exchange(name=parking),
        ),
        queues=(
            _queue(queue, safe=safe, to=retry, key=RETRY),
            _queue(back, safe=safe, to="", key=queue, ttl_ms=delay_ms),
            _queue(dead, safe=safe),
        ),
        bindings=(
            *(
                Binding(source=source, destination=queue, routing_key=key)
                for source, keys in bound.items()
                for key in ([keys] if isinstance(keys, str) else keys)
            ),
            Binding(source=retry, destination=back, routing_key=RETRY),
            Binding(source=parking, destination=dead, routing_key=PARKING),
        ),
        wirings=(
            Wiring(
                queue=queue,
                retry=RejectRetry(delay_ms=delay_ms),
                dead_letter=DeadLetterRoute(exchange=parking, routing_key=PARKING),
                dead_letter_queue=dead,
            ),
        ),
    )


def delay_levels(*queues: str) -> Topology:
    """The delay ladder (`redrive.core.topology.ladder`), and for each queue the safe shape: a quorum queue whose dead
    letters, also those the broker makes, lie in `<queue>.dead`. Without queues the ladder alone, to be added to another
    recipe: its queues then take any delay their own tiers do not have.

        delay_levels("orders")
        fanout_bus("wms-cincout") + delay_levels()
    """
    return _checked((*(safe_queue(queue) for queue in queues), ladder()))


def safe_queue(queue: str, dead_letter_queue: str | None = None) -> Topology:
    """What redrive declares for a consumer queue of which nothing is said: `queue` and its dead-letter queue (None:
    `<queue>.dead`), both quorum. Needs the ladder. Nothing moves out of either unless it arrived elsewhere.
    """
    dead = f"{queue}.dead" if dead_letter_queue is None else dead_letter_queue
    return Topology(
        queues=(_queue(queue, safe=True, to="", key=dead), _queue(dead, safe=True)),
        wirings=(
            Wiring(
                queue=queue,
                retry=LadderRetry(),
                dead_letter=DeadLetterRoute(exchange="", routing_key=dead),
                dead_letter_queue=dead,
            ),
        ),
    )


def _queue(
    name: str, *, safe: bool, to: str | None = None, key: str | None = None, ttl_ms: Millis | None = None
) -> Queue:
    """`to`: its dead-letter exchange; None: what dies in it is gone, so nothing may die in it."""
    arguments: dict[str, Any] = {"x-queue-type": "classic"}
    if safe:
        arguments = dict(SAFE) if to is not None else {"x-queue-type": SAFE["x-queue-type"]}
    if ttl_ms is not None:
        arguments["x-message-ttl"] = ttl_ms
    if to is not None:
        arguments["x-dead-letter-exchange"] = to
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    return Queue(name=name, arguments=arguments)


def _delay(delay: Duration, field: str) -> Millis:
    delay_ms = duration_ms(delay, field=field)
    if not 0 < delay_ms <= MAX_DELAY_MS:
        raise ConfigurationError(f"{field} is {delay!r}: a retry waits at least a millisecond.")
    return delay_ms


def _some(given: Iterable[str], recipe: str, what: str) -> None:
    names = [given] if isinstance(given, str) else list(given)
    if isinstance(given, str) or not names:
        raise ConfigurationError(
            f"{recipe}: {given!r} names no {what}.", hint=f"Give at least one {what}, each as text."
        )
    if "" in names:
        raise ConfigurationError(f"{recipe}: a {what} has an empty name.")


def _checked(parts: Iterable[Topology]) -> Topology:
    whole = sum(parts, Topology())
    check_names(whole)
    return whole
