"""A running worker goes by what people set, until they take it back."""

from __future__ import annotations

from redrive.core.policy.control import Control
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import parse_rate
from redrive.runtime.controls import Controls
from redrive.runtime.events import Event, Events
from redrive.stores.memory import MemoryControlStore


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
