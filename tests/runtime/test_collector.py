"""The collector of dead-letter queues: what the store cannot hold, what dies twice, and what it counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from redrive import Redrive
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import Message
from redrive.core.ports import Outgoing, ReviewChange
from redrive.errors import InvalidMessageError
from redrive.runtime.collecting import Turn
from redrive.runtime.collector import NOT_STORABLE, Collector

DEAD = "labels.dlq"


@pytest_asyncio.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Redrive]:
    """Its store cannot hold the messages called "bad"."""
    monkeypatch.setattr("redrive.runtime.collector.WAIT_MS", 10)
    app = Redrive("shop", "memory://", settings={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    async with app:
        put = app.backend.letters.put

        async def choosy(batch: Sequence[Letter]) -> None:
            if any(each.message.id == "bad" for each in batch):
                raise InvalidMessageError("a number is larger than 64 bits")
            await put(batch)

        app.backend.letters.put = choosy  # type: ignore[method-assign]
        yield app


def collector(app: Redrive, worker: str = "w-1") -> Collector:
    return Collector(app.backend, app.clock, app.events, system="shop", worker=worker)


async def send(app: Redrive, *messages: Message) -> None:
    await app.backend.broker.publish([Outgoing(queue=DEAD, message=each) for each in messages])


async def was_killed(app: Redrive) -> None:
    """Somebody takes all that lies there; its lease ends."""
    await app.backend.broker.receive(DEAD, limit=10, lease_ms=1, worker="other", wait_ms=0)
    await app.clock.sleep(5)


async def bodies(app: Redrive) -> list[bytes]:
    page = await app.backend.letters.find(Selection(), limit=100)
    found = [await app.backend.letters.get(each.id) for each in page.letters]
    return sorted(each[0].message.body for each in found if each is not None)


async def test_what_the_store_cannot_hold_is_left_and_those_behind_it_are_letters(app: Redrive) -> None:
    good = [Message(id=f"m-{number}", body=b"%d" % number) for number in range(3)]
    await send(app, Message(id="bad", body=b"bad"), *good)
    drain = collector(app)

    done = await drain.run(DEAD, once=True)

    assert (3, 3, {NOT_STORABLE: 1}) == (done.taken, done.new, dict(done.left))
    assert [b"0", b"1", b"2"] == await bodies(app)
    assert drain.is_clean
    await drain.let_go()
    assert ["bad"] == [each.id for each in await app.backend.broker.peek(DEAD, limit=9)]


async def test_by_hand_it_lies_in_its_queue_again_at_the_end(app: Redrive) -> None:
    await send(app, Message(id="bad", body=b"bad"))
    drain, turn = collector(app), Turn(app.backend.claims, app.clock, queue=DEAD, owner="w-1")
    assert await turn.take()

    await turn.during(drain.run(DEAD, once=True), drain)

    assert ["bad"] == [each.id for each in await app.backend.broker.peek(DEAD, limit=9)]


async def test_what_dies_again_after_its_letter_was_closed_is_another_letter(app: Redrive) -> None:
    await send(app, Message(id="m-1", key="m-1", body=b"x"))
    await collector(app).run(DEAD, once=True)
    (first,) = (await app.backend.letters.find(Selection(), limit=9)).letters
    change = ReviewChange(letter_id=first.id, to=ReviewState.CLOSED, actor="ann", at=app.clock.now())
    await app.backend.letters.review([change])

    await send(app, Message(id="m-1", key="m-1", body=b"x"))
    done = await collector(app).run(DEAD, once=True)

    assert (1, 1) == (done.taken, done.new)
    assert {"closed": 1, "pending": 1} == (await app.backend.letters.stats(Selection())).by_state


async def test_what_comes_once_more_with_an_id_is_the_same_letter(app: Redrive) -> None:
    await send(app, Message(id="m-1", key="m-1", body=b"x"))
    await collector(app).run(DEAD, once=True)
    await send(app, Message(id="m-1", key="m-1", body=b"x"))
    await was_killed(app)

    done = await collector(app).run(DEAD, once=True)

    assert (1, 0) == (done.taken, done.new)


async def test_what_was_counted_before_the_queue_was_empty_takes_no_later_one_for_stored(app: Redrive) -> None:
    drain = collector(app)
    await send(app, Message(id="m-1", body=b"x"))
    drain._unsettled["dl_gone"] += 1
    drain._met.add("dl_gone")

    await drain.run(DEAD, once=True)

    assert drain.is_clean
    assert set() == drain._met


async def test_what_was_counted_in_an_earlier_turn_is_forgotten_and_kept_at_a_renewal(app: Redrive) -> None:
    drain, turn = collector(app), Turn(app.backend.claims, app.clock, queue=DEAD, owner="w-1")
    assert await turn.take()
    turn.begin(drain)
    drain._unsettled["dl_1"] += 1

    assert await turn.take()
    turn.begin(drain)
    assert not drain.is_clean

    await turn.give_back()
    assert await turn.take()
    turn.begin(drain)
    assert drain.is_clean
