"""A running worker goes by what people set, until they take it back."""

from __future__ import annotations

from pathlib import Path

from redrive.brokers.sqlite import SqliteBroker
from redrive.core import settlement
from redrive.core.policy.control import Control
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import parse_rate
from redrive.core.ports import Settle
from redrive.runtime.controls import Controls
from redrive.runtime.events import Event, Events
from redrive.sqlite import SqliteFile
from redrive.stores.memory import MemoryControlStore
from redrive.stores.sqlite import SqliteControlStore
from redrive.testing.clock import FakeClock
from redrive.testing.samples import outgoing


async def test_what_is_set_holds_in_place_and_is_told_once() -> None:
    own = {"mail": Fair(batch=3), "audit": Fair(batch=2)}
    live, store, events = dict(own), MemoryControlStore(), Events()
    told: list[Event] = []
    events.subscribe(told.append)
    controls = Controls(store, own=own, live=live, events=events)

    await controls.look()
    await store.put(Control(queue="mail", batch=9, rates={"acme": "1/s"}, actor="ann"))
    await store.put(Control(queue="nobody's", batch=9))
    await controls.look()
    await controls.look()
    held = dict(live)
    await store.put(Control(queue="mail"))
    await controls.look()

    assert (9, parse_rate("1/s")) == (held["mail"].batch, held["mail"].rate_of("acme"))
    assert own["audit"] is held["audit"]
    assert own == live
    assert [("mail", 9, "ann"), ("mail", 3, None)] == [
        (event.fields["queue"], event.fields["batch"], event.fields["actor"]) for event in told
    ]


async def test_the_embedded_broker_takes_turns_as_it_is_told_now(tmp_path: Path, clock: FakeClock) -> None:
    own = {"mail": Fair(batch=1, weights={"a": 100})}
    live = dict(own)
    file = SqliteFile(tmp_path / "mail.db", clock=clock, fair=live)
    broker, store = SqliteBroker(file), SqliteControlStore(file)
    controls = Controls(store, own=own, live=live, events=Events())
    await broker.open()
    await store.open()
    await broker.publish(
        [outgoing(f"{tenant}{n}", queue="mail", tenant=tenant) for n in range(12) for tenant in ("a", "b")]
    )

    async def starts(count: int) -> str:
        taken = await broker.receive("mail", limit=count, lease_ms=60_000, worker="w", wait_ms=0)
        await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])
        return "".join(str(each.message.tenant) for each in taken)

    before = await starts(6)
    await store.put(Control(queue="mail", batch=4))
    await controls.look()
    wide = await starts(5)
    await store.put(Control(queue="mail", batch=1, rates={"a": "1/h"}))
    await controls.look()
    held = await starts(4)
    await broker.close()
    await store.close()

    assert "aa" not in before
    assert "aaaa" in wide
    assert 1 >= held.count("a")
