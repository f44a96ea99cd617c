"""ControlStoreContract: what a person changed of a queue is kept whole until it is taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest_asyncio

from redrive.core.policy.control import Control, ControlStore, Kind, Pause, Quarantine
from redrive.core.ports import Clock
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import HARD_NAMES


class ControlStoreContract(Contract):
    """Subclass, say how to `make` a control store, inherit the tests."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[ControlStore]:
        """A fresh, empty store, not yet opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a control store on {clock}")

    @pytest_asyncio.fixture
    async def controls(self, clock: Clock) -> AsyncIterator[ControlStore]:
        async with self.make(clock) as controls:
            await controls.open()
            yield controls
            await controls.close()

    async def test_a_control_comes_back_whole(self, controls: ControlStore) -> None:
        given = Control(
            queue="mail", batch=5, rates={"acme": "10/min", "*": "100/s"}, changed_at=7, actor="ann", note="too slow"
        )

        await controls.put(given)

        assert [given] == await controls.list()

    async def test_a_pause_and_what_is_set_aside_come_back_whole(self, controls: ControlStore) -> None:
        asides = [
            Quarantine(kind=kind, name=name, until=9, at=7, actor=name, note=name)
            for kind in Kind
            for name in HARD_NAMES
        ]
        given = Control(queue="mail", paused=Pause(at=7, actor="ann", note="down"), quarantined=tuple(asides))
        alone = Control(queue="audit", paused=Pause())

        await controls.put(given)
        await controls.put(alone)

        assert [alone, given] == await controls.list()

    async def test_the_last_one_of_a_queue_holds(self, controls: ControlStore) -> None:
        await controls.put(Control(queue="mail", batch=5))
        await controls.put(Control(queue="mail", rates={"acme": "1/s"}))
        await controls.put(Control(queue="audit", batch=2))

        assert [Control(queue="audit", batch=2), Control(queue="mail", rates={"acme": "1/s"})] == await controls.list()

    async def test_one_that_changes_nothing_is_none(self, controls: ControlStore) -> None:
        await controls.put(Control(queue="mail", batch=5))

        await controls.put(Control(queue="mail", actor="ann"))
        await controls.put(Control(queue="never seen"))

        assert [] == await controls.list()

    async def test_hard_names_are_kept_apart(self, controls: ControlStore) -> None:
        for number, name in enumerate(HARD_NAMES, 1):
            await controls.put(Control(queue=name, rates={name: f"{number}/s"}))

        found = {control.queue: dict(control.rates) for control in await controls.list()}

        assert {name: {name: f"{number}/s"} for number, name in enumerate(HARD_NAMES, 1)} == found
