"""RequestStoreContract: what was written over the API stays as it was told, and an answer is given again until its time
is over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest
import pytest_asyncio

from redrive.core.audit import Answer, RequestStore, Write, WriteQuery, write_id
from redrive.core.ports import Clock
from redrive.errors import ConfigurationError
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import HARD_NAMES

AT = 1_700_000_000_000


def write(number: int, **changes: object) -> Write:
    """The write that began so many milliseconds later."""
    made = Write(
        id=write_id(AT + number, f"{number:020x}"), at=AT + number, actor="ann", role="admin", operation="pause_queue"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class RequestStoreContract(Contract):
    """Subclass, say how to `make` a request store, inherit the tests."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[RequestStore]:
        """A fresh, empty store, not yet opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a request store on {clock}")

    @pytest_asyncio.fixture
    async def requests(self, clock: Clock) -> AsyncIterator[RequestStore]:
        async with self.make(clock) as requests:
            await requests.open()
            yield requests
            await requests.close()

    async def test_a_write_comes_back_whole_with_its_result(self, requests: RequestStore) -> None:
        begun = write(1, target="orders", address="192.0.2.1")
        done = replace(begun, status=200, result="changed=3")

        await requests.put(begun)
        first = await requests.writes(WriteQuery(), limit=10)
        await requests.put(done)
        await requests.put(done)

        assert ((begun,), None) == (first.writes, first.cursor)
        assert (done,) == (await requests.writes(WriteQuery(), limit=10)).writes

    async def test_a_walk_goes_from_the_newest_to_the_oldest_once(self, requests: RequestStore) -> None:
        given = [write(number) for number in range(7)]
        for each in (*given[3:], *given[:3]):
            await requests.put(each)

        found: list[Write] = []
        sizes, cursor = [], None
        while True:
            page = await requests.writes(WriteQuery(), limit=3, cursor=cursor)
            found += page.writes
            sizes.append(len(page.writes))
            await requests.put(write(100 + len(sizes)))  # what comes meanwhile is not in this walk
            cursor = page.cursor
            if cursor is None:
                break

        assert given[::-1] == found
        assert [3, 3, 1] == sizes

    async def test_a_cursor_that_no_page_had_is_refused(self, requests: RequestStore) -> None:
        for cursor in ("", "junk", "rq_1", "rq_' OR 1"):
            with pytest.raises(ConfigurationError):
                await requests.writes(WriteQuery(), limit=3, cursor=cursor)

    async def test_conditions_hold_together(self, requests: RequestStore) -> None:
        await requests.put(write(1, actor="bob", target="orders"))
        await requests.put(write(2, target="orders"))
        await requests.put(write(3, operation="release", target="refunds"))

        async def found(**query: object) -> list[int]:
            page = await requests.writes(WriteQuery(**query), limit=10)  # type: ignore[arg-type]
            return [each.at - AT for each in page.writes]

        assert [2, 1] == await found(target="orders")
        assert [2] == await found(target="orders", actor="ann")
        assert [3] == await found(operation="release")
        assert [2] == await found(since=AT + 2, until=AT + 3)
        assert [] == await found(actor="bob", operation="release")

    async def test_hard_names_are_kept_apart(self, requests: RequestStore) -> None:
        names = (*HARD_NAMES, "\x00", "\ud800", '"', "\\u0000")
        for number, name in enumerate(names):
            await requests.put(write(number, actor=name, target=name, address=name, result=name))

        for number, name in enumerate(names):
            [found] = (await requests.writes(WriteQuery(actor=name, target=name), limit=10)).writes
            assert (AT + number, name, name) == (found.at, found.address, found.result)

    async def test_an_answer_is_given_again_until_its_time_is_over(self, requests: RequestStore) -> None:
        given = Answer(status=202, body=bytes(range(256)), headers={"location": "/api/v1/jobs/a%2Fb"})
        await requests.keep("api-1", replace(given, status=200), expires_at=AT + 5)
        await requests.keep("api-1", given, expires_at=AT + 10)

        assert given == await requests.answer("api-1", now=AT + 9)
        assert None is await requests.answer("api-1", now=AT + 10)
        assert None is await requests.answer("api-2", now=AT)

    async def test_what_is_over_and_what_is_old_goes(self, requests: RequestStore) -> None:
        for number in range(5):
            await requests.put(write(number))
            await requests.keep(f"api-{number}", Answer(status=200, body=b""), expires_at=AT + number)

        gone = [await requests.prune(now=AT + 2, before=AT + 2, limit=limit) for limit in (1, 10, 10)]
        left = (await requests.writes(WriteQuery(), limit=10)).writes

        assert [2, 3, 0] == gone
        assert [4, 3, 2] == [each.at - AT for each in left]
        assert None is not await requests.answer("api-3", now=AT)
        assert None is await requests.answer("api-2", now=AT)
