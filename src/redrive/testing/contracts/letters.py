"""LetterStoreContract: dead letters are kept whole, found again in order, and moved only as the review table says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final

import pytest
import pytest_asyncio

from redrive.core.letters.ages import NO_AGES, ages_at
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.review import moves
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.message import Properties
from redrive.core.ports import AuditEntry, Clock, LetterStore, LetterSummary, ReviewChange
from redrive.core.settlement import Reason
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import HARD_BODIES, HARD_NAMES, hard_letter, kinds, letter, message

DIED_AT: Final[UnixMs] = 1_700_000_000_000
EVERYTHING: Final = Selection()
PAGE_LIMIT_BYTES: Final = 100_000

WAYS: Final[dict[ReviewState, tuple[ReviewState, ...]]] = {
    ReviewState.PENDING: (),
    ReviewState.REVIEWED: (ReviewState.REVIEWED,),
    ReviewState.REPLAYED: (ReviewState.REVIEWED, ReviewState.REPLAYED),
    ReviewState.CLOSED: (ReviewState.REVIEWED, ReviewState.REPLAYED, ReviewState.CLOSED),
}
"""How a pending letter is brought to each state."""

SELECTIONS: Final[dict[str, Selection]] = {
    "everything": Selection(),
    "ids": Selection(ids=("odd", "never seen")),
    "queue": Selection(queue="billing"),
    "dead-letter queue": Selection(queue="billing.dead"),
    "states": Selection(states=frozenset({ReviewState.CLOSED, ReviewState.REVIEWED})),
    "reason code": Selection(reason_code="VALIDATION_FAILED"),
    "error type": Selection(error_type="ValueError"),
    "error code": Selection(error_code="HTTP_422"),
    "fingerprint": Selection(fingerprint="fp-odd"),
    "tenant": Selection(tenant="acme"),
    "key": Selection(key="key-odd"),
    "message type": Selection(message_type="order.created"),
    "message id": Selection(message_id="msg-ODD"),
    "a header": Selection(headers=(("x-region", "eu"),)),
    "a header of another kind": Selection(headers=(("n", "7"), ("b", "true"))),
    "a header with another value": Selection(headers=(("x-region", "e"),)),
    "a header that is hard to keep": Selection(headers=(('naïve Ω "x"', "a\x00b 界"),)),
    "since": Selection(since=DIED_AT + 10),
    "until": Selection(until=DIED_AT + 10),
    "since and until": Selection(since=DIED_AT + 10, until=DIED_AT + 11),
    "text in the reason": Selection(text="ODD reason 100%"),
    "text in the message id": Selection(text="MSG-odd"),
    "text in the key": Selection(text="KEY-ODD"),
    "a percent sign is no wildcard": Selection(text="r%n"),
    "an underscore is no wildcard": Selection(text="re_son"),
    "conditions hold together": Selection(queue="billing", tenant="acme", text="odd"),
    "conditions that exclude each other": Selection(queue="billing", tenant="nobody"),
}
ODD_SELECTED: Final = {
    "everything", "ids", "queue", "dead-letter queue", "states", "reason code", "error type", "error code",
    "fingerprint", "tenant", "key", "message type", "since", "since and until", "text in the reason",
    "text in the message id", "text in the key", "conditions hold together", "message id", "a header",
    "a header of another kind", "a header that is hard to keep",
}  # fmt: skip
"""The selections that take the letter that differs in everything; plain letters are taken by the rest."""
PLAIN_SELECTED: Final = {"everything", "until"}


class LetterStoreContract(Contract):
    """Subclass, say how to `make` a letter store, inherit the tests."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[LetterStore]:
        """A fresh, empty store, not yet opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a letter store on {clock}")

    @pytest_asyncio.fixture
    async def letters(self, clock: Clock) -> AsyncIterator[LetterStore]:
        async with self.make(clock) as letters:
            await letters.open()
            yield letters
            await letters.close()

    async def kept(self, letters: LetterStore, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]]:
        """The letter, which must be there, and its audit trail."""
        found = await letters.get(letter_id)
        assert found is not None
        return found

    async def walk(
        self, letters: LetterStore, selection: Selection = EVERYTHING, *, limit: int = 3
    ) -> list[LetterSummary]:
        """All pages."""
        found: list[LetterSummary] = []
        cursor: str | None = None
        while True:
            page = await letters.find(selection, limit=limit, cursor=cursor)
            assert len(page.letters) <= limit
            found += page.letters
            cursor = page.cursor
            if cursor is None:
                return found

    async def move(self, letters: LetterStore, letter_id: str, states: Sequence[ReviewState]) -> list[str | None]:
        """Move one letter through the states."""
        return await letters.review(
            [ReviewChange(letter_id=letter_id, to=state, actor="ann", at=DIED_AT) for state in states]
        )

    # ------------------------------------------------------------------------------------------------- keeping

    async def test_a_letter_comes_back_whole(self, letters: LetterStore) -> None:
        given = hard_letter()
        await letters.put([given])

        found, audit = await self.kept(letters, given.id)

        assert given == found
        assert kinds(given.message.headers) == kinds(found.message.headers)
        assert () == audit

    @pytest.mark.parametrize("body", HARD_BODIES.values(), ids=HARD_BODIES.keys())
    async def test_a_body_comes_back_byte_for_byte(self, letters: LetterStore, body: bytes) -> None:
        await letters.put([letter(message=message(body=body))])

        found, _ = await self.kept(letters, "dl_1")

        assert body == found.message.body

    async def test_putting_twice_is_putting_once(self, letters: LetterStore) -> None:
        first = letter()
        await letters.put([first, first])

        await letters.put([letter(reason=Reason(code="OTHER", text="told again"), attempt_count=9)])

        assert (first, ()) == await self.kept(letters, "dl_1")
        assert 1 == len(await self.walk(letters))

    async def test_putting_again_leaves_the_review_state_to_the_person(self, letters: LetterStore) -> None:
        await letters.put([letter()])
        await self.move(letters, "dl_1", [ReviewState.REVIEWED])

        await letters.put([letter()])

        found, audit = await self.kept(letters, "dl_1")
        assert ReviewState.REVIEWED == found.state
        assert 1 == len(audit)

    async def test_fifty_puts_of_one_letter_at_one_moment_are_one(self, letters: LetterStore) -> None:
        await asyncio.gather(*(letters.put([letter()]) for _ in range(50)))

        assert 1 == len(await self.walk(letters))

    async def test_letters_with_hard_names_are_found_by_them(self, letters: LetterStore) -> None:
        await letters.put(
            [
                letter(f"dl_{number}", queue=name, dead_letter_queue=f"{name}.dead", message=message(tenant=name))
                for number, name in enumerate(HARD_NAMES)
            ]
        )

        for name in HARD_NAMES:
            assert [name] == [found.queue for found in await self.walk(letters, Selection(queue=name))]
            assert [name] == [found.tenant for found in await self.walk(letters, Selection(tenant=name))]

    async def test_an_unknown_id_is_no_letter(self, letters: LetterStore) -> None:
        assert await letters.get("never seen") is None

    # ------------------------------------------------------------------------------------------------- finding

    async def test_a_summary_tells_what_a_list_shows(self, letters: LetterStore) -> None:
        given = hard_letter()
        await letters.put([given])

        (summary,) = await self.walk(letters)

        for name in (
            "id", "queue", "dead_letter_queue", "error_type", "error_code", "attempt_count", "fingerprint",
            "group_title", "state", "first_failed_at", "dead_lettered_at", "expires_at", "redrive_count", "previous",
            "outstanding_job",
        ):  # fmt: skip
            assert getattr(given, name) == getattr(summary, name), name
        assert (given.reason.code, given.reason.text) == (summary.reason_code, summary.reason_text)
        assert (given.message.id, given.message.key) == (summary.message_id, summary.key)
        assert (given.message.tenant, given.message.properties.type) == (summary.tenant, summary.message_type)
        assert len(given.message.body) == summary.body_bytes

    async def test_letters_are_listed_oldest_first(self, letters: LetterStore) -> None:
        await letters.put([letter(f"dl_{ms}", died_at=DIED_AT + ms) for ms in (300, 100, 200)])
        await letters.put([letter("dl_50", died_at=DIED_AT + 50)])

        assert ["dl_50", "dl_100", "dl_200", "dl_300"] == [found.id for found in await self.walk(letters, limit=2)]

    @pytest.mark.parametrize("limit", [1, 2, 9, 10, 11, 100])
    async def test_pages_of_any_size_show_each_letter_once(self, letters: LetterStore, limit: int) -> None:
        # Half of them died in the same millisecond.
        names = [f"dl_{number}" for number in range(10)]
        await letters.put([letter(name, died_at=DIED_AT + max(0, number - 5)) for number, name in enumerate(names)])

        seen = [found.id for found in await self.walk(letters, limit=limit)]

        assert names == sorted(seen)

    async def test_a_walk_sees_each_letter_once_whatever_arrives_meanwhile(self, letters: LetterStore) -> None:
        names = [f"dl_{number}" for number in range(20)]
        await letters.put([letter(name, died_at=DIED_AT + 10 * number) for number, name in enumerate(names)])
        seen: list[str] = []
        cursor: str | None = None

        for round_number in range(100):
            page = await letters.find(Selection(), limit=3, cursor=cursor)
            seen += [found.id for found in page.letters]
            # New letters, also ones that say they died before those already seen, or in the same millisecond.
            await letters.put(
                [letter(f"new_{round_number}_{offset}", died_at=DIED_AT + offset) for offset in (-5, 10, 55, 500)]
            )
            await self.move(letters, seen[-1], [ReviewState.REVIEWED])
            cursor = page.cursor
            if cursor is None or set(names) <= set(seen):
                break

        assert set(names) <= set(seen)
        assert len(seen) == len(set(seen))

    async def test_the_last_page_has_no_cursor(self, letters: LetterStore) -> None:
        await letters.put([letter(f"dl_{number}") for number in range(4)])

        assert (await letters.find(Selection(), limit=4)).cursor is None
        assert (await letters.find(Selection(), limit=5)).cursor is None
        assert (await letters.find(Selection(), limit=3)).cursor is not None
        assert (await letters.find(Selection(queue="empty"), limit=3)).cursor is None

    @pytest.mark.parametrize("cursor", ["", "x", "1", "1-", "-1", "1-x"])
    async def test_a_cursor_that_no_page_had_is_refused(self, letters: LetterStore, cursor: str) -> None:
        await letters.put([letter()])

        with pytest.raises(ConfigurationError, match="ursor"):
            await letters.find(Selection(), limit=4, cursor=cursor)

    async def test_a_page_of_fifty_is_small_whatever_the_bodies(self, letters: LetterStore) -> None:
        await letters.put([letter(f"dl_{number}", message=message(body=bytes(20_000))) for number in range(50)])

        page = await letters.find(Selection(), limit=50)

        assert 50 == len(page.letters)
        assert len(repr(page)) < PAGE_LIMIT_BYTES

    @pytest.mark.parametrize("name", SELECTIONS)
    async def test_a_selection_takes_what_its_conditions_say(self, letters: LetterStore, name: str) -> None:
        odd = letter(
            "odd",
            died_at=DIED_AT + 10,
            queue="billing",
            dead_letter_queue="billing.dead",
            reason=Reason(code="VALIDATION_FAILED", text="an odd reason 100% sure"),
            error_type="ValueError",
            error_code="HTTP_422",
            fingerprint="fp-odd",
            message=message(
                "msg-ODD",
                key="key-odd",
                tenant="acme",
                properties=Properties(type="order.created"),
                headers={"x-region": "eu", "n": 7, "b": True, 'naïve Ω "x"': "a\x00b 界", "$x": None},
            ),
        )
        await letters.put([letter("plain"), odd, letter("plain-2", message=message("m-2", key=None))])
        await self.move(letters, "odd", [ReviewState.REVIEWED])
        expected = (["plain", "plain-2"] if name in PLAIN_SELECTED else []) + (["odd"] if name in ODD_SELECTED else [])

        found = [found.id for found in await self.walk(letters, SELECTIONS[name], limit=2)]
        stats = await letters.stats(SELECTIONS[name])

        assert expected == found
        assert len(expected) == stats.total

    # ------------------------------------------------------------------------------------------------- counting

    async def test_statistics_count_by_everything_largest_first(self, letters: LetterStore) -> None:
        await letters.put([
            *(letter(f"a{number}", fingerprint="fp-a", message=message(tenant="acme")) for number in range(3)),
            letter("b", died_at=DIED_AT - 60_000, fingerprint="fp-b", message=message(tenant="bolt"), queue="billing",
                   reason=Reason(code="VALIDATION_FAILED", text="no id")),
            letter("closed", died_at=DIED_AT - 90_000, fingerprint="fp-a", message=message(tenant="acme")),
        ])  # fmt: skip
        await self.move(letters, "closed", WAYS[ReviewState.CLOSED])

        stats = await letters.stats(Selection())

        assert 5 == stats.total
        assert {"pending": 4, "closed": 1} == stats.by_state
        assert [("orders", 4), ("billing", 1)] == list(stats.by_queue.items())
        assert [("TIMEOUT_EXHAUSTED", 4), ("VALIDATION_FAILED", 1)] == list(stats.by_reason.items())
        assert [("fp-a", 4), ("fp-b", 1)] == list(stats.by_group.items())
        assert [("acme", 4), ("bolt", 1)] == list(stats.by_tenant.items())
        assert DIED_AT - 60_000 == stats.oldest_at

    async def test_statistics_name_no_more_than_asked(self, letters: LetterStore) -> None:
        await letters.put(
            [
                letter(f"dl_{number}_{copy}", fingerprint=f"fp-{number}")
                for number in range(6)
                for copy in range(number + 1)
            ]
        )

        stats = await letters.stats(Selection(), top=2)

        assert 21 == stats.total
        assert [("fp-5", 6), ("fp-4", 5)] == list(stats.by_group.items())

    async def test_nothing_selected_counts_nothing(self, letters: LetterStore) -> None:
        stats = await letters.stats(Selection(queue="empty"))

        assert (0, {}, {}, None) == (stats.total, stats.by_state, stats.by_group, stats.oldest_at)

    async def test_counting_may_end_early_and_says_so(self, letters: LetterStore) -> None:
        await letters.put([
            *(letter(f"dl_{n}", died_at=DIED_AT + n, message=message(tenant="acme"), fingerprint=f"fp-{n}")
              for n in range(7)),
            *(letter(f"other_{number}", message=message(tenant="bolt")) for number in range(3)),
        ])  # fmt: skip
        acme = Selection(tenant="acme")

        early = await letters.stats(acme, up_to=5, ages_at=DIED_AT)
        whole = await letters.stats(acme, up_to=7)
        all_of_them = await letters.stats(EVERYTHING, up_to=5)

        assert (5, True, {"acme": 5}) == (early.total, early.is_at_least, early.by_tenant)
        assert {"fp-0", "fp-1", "fp-2", "fp-3", "fp-4"} == set(early.by_group)
        assert early.ages is not None
        assert 7 == sum(early.ages.counts)
        assert (7, False) == (whole.total, whole.is_at_least)
        assert (await letters.stats(acme)) == whole
        assert (all_of_them.total, all_of_them.is_at_least) in {(10, False), (5, True)}

    async def test_the_counts_of_a_queue_follow_what_becomes_of_its_letters(self, letters: LetterStore) -> None:
        await letters.put([
            *(letter(f"dl_{number}", died_at=DIED_AT + number, message=message(tenant=None)) for number in range(5)),
            letter("else", queue="billing", dead_letter_queue="orders.dead", fingerprint="fp-else"),
        ])  # fmt: skip
        await self.move(letters, "dl_0", WAYS[ReviewState.CLOSED])
        await self.move(letters, "dl_1", [ReviewState.REVIEWED])
        await letters.prune(now=DIED_AT, limit=1, selection=Selection(ids=("dl_2",)))
        await letters.put([letter("dl_3")])

        for name, states in itertools.product(
            ("orders", "orders.dead", "billing"), (frozenset(), OPEN_STATES, frozenset({ReviewState.CLOSED}))
        ):
            chosen = Selection(queue=name, states=states)
            counted = await letters.stats(chosen, up_to=100)

            assert await letters.stats(replace(chosen, since=0)) == counted
        closed = await letters.stats(Selection(queue="orders", states=frozenset({ReviewState.CLOSED})))
        opened = await letters.stats(Selection(queue="orders.dead", states=OPEN_STATES))
        assert ({"closed": 1}, None) == (closed.by_state, closed.oldest_at)
        assert {"pending": 3, "reviewed": 1} == opened.by_state
        assert {"orders": 3, "billing": 1} == opened.by_queue
        assert DIED_AT == opened.oldest_at

    async def test_ages_are_told_where_they_are_asked_for(self, letters: LetterStore) -> None:
        now = DIED_AT
        ages = [0, 10_000, 10_001, 3_600_000, 3_600_001, 91 * 86_400_000, -5]
        await letters.put([letter(f"dl_{age}", died_at=now - age) for age in ages])

        asked = await letters.stats(EVERYTHING, ages_at=now)
        some = await letters.stats(Selection(ids=("dl_0", "dl_3600001")), ages_at=now)
        none = await letters.stats(Selection(queue="empty"), ages_at=now)

        assert ages_at(now, [now - age for age in ages]) == asked.ages
        assert asked.ages is not None
        assert (3, 1, 1) == (asked.ages.counts[0], asked.ages.counts[1], asked.ages.counts[-1])
        assert sum(ages) + 5 == asked.ages.total_ms
        assert ages_at(now, [now, now - 3_600_001]) == some.ages
        assert NO_AGES == none.ages
        assert (await letters.stats(EVERYTHING)).ages is None

    # ------------------------------------------------------------------------------------------------- reviewing

    @pytest.mark.parametrize("to", ReviewState, ids=str)
    @pytest.mark.parametrize("state", ReviewState, ids=str)
    async def test_a_letter_moves_only_as_the_review_table_allows(
        self, letters: LetterStore, state: ReviewState, to: ReviewState
    ) -> None:
        await letters.put([letter()])
        assert [None] * len(WAYS[state]) == await self.move(letters, "dl_1", WAYS[state])
        _, audit_before = await self.kept(letters, "dl_1")

        (why,) = await letters.review(
            [ReviewChange(letter_id="dl_1", to=to, actor="bob", at=DIED_AT + 5, note="because")]
        )

        found, audit = await self.kept(letters, "dl_1")
        steps = moves(state, to)
        if isinstance(steps, str):
            assert why
            assert (state, audit_before) == (found.state, audit)
        else:
            assert why is None
            assert to == found.state
            assert audit_before == audit[: len(audit_before)]
            # Each step on the way is on record, by the same person and for the same reason.
            recorded = [(entry.at, entry.actor, entry.note) for entry in audit[len(audit_before) :]]
            assert [(DIED_AT + 5, "bob", "because")] * len(steps) == recorded

    async def test_moving_an_unknown_letter_is_refused(self, letters: LetterStore) -> None:
        await letters.put([letter()])

        answers = await letters.review(
            [
                ReviewChange(letter_id="never seen", to=ReviewState.REVIEWED, actor="ann", at=DIED_AT),
                ReviewChange(letter_id="dl_1", to=ReviewState.REVIEWED, actor="ann", at=DIED_AT),
            ]
        )

        assert answers[0]
        assert answers[1] is None

    async def test_the_moves_of_one_batch_follow_each_other(self, letters: LetterStore) -> None:
        await letters.put([letter()])

        answers = await self.move(letters, "dl_1", WAYS[ReviewState.CLOSED])

        found, audit = await self.kept(letters, "dl_1")
        assert [None, None, None] == answers
        assert ReviewState.CLOSED == found.state
        assert 3 == len(audit)

    # ------------------------------------------------------------------------------------------------- pruning

    @pytest.mark.parametrize("state", ReviewState, ids=str)
    async def test_only_letters_a_person_is_done_with_are_pruned(
        self, letters: LetterStore, state: ReviewState
    ) -> None:
        await letters.put([letter(expires_at=DIED_AT + 1_000)])
        await self.move(letters, "dl_1", WAYS[state])

        early = await letters.prune(now=DIED_AT + 999, limit=10)
        pruned = await letters.prune(now=DIED_AT + 1_000, limit=10)

        assert 0 == early
        assert (0 if state in OPEN_STATES else 1) == pruned
        assert (state in OPEN_STATES) == (await letters.get("dl_1") is not None)

    async def test_pruning_goes_no_further_than_asked_and_spares_what_never_expires(self, letters: LetterStore) -> None:
        await letters.put([letter(f"dl_{number}", expires_at=DIED_AT) for number in range(5)])
        await letters.put([letter("forever")])
        for name in ("forever", *(f"dl_{number}" for number in range(5))):
            await self.move(letters, name, WAYS[ReviewState.CLOSED])

        pruned = [await letters.prune(now=DIED_AT + 1, limit=2) for _ in range(4)]

        assert [2, 2, 1, 0] == pruned
        assert ["forever"] == [found.id for found in await self.walk(letters)]

    @pytest.mark.parametrize("state", ReviewState, ids=str)
    async def test_what_a_person_selects_is_pruned_in_any_state(self, letters: LetterStore, state: ReviewState) -> None:
        await letters.put([letter("old", died_at=DIED_AT - 10), letter("young", expires_at=DIED_AT)])
        await self.move(letters, "old", WAYS[state])

        gone = [await letters.prune(now=DIED_AT, limit=5, selection=Selection(until=DIED_AT)) for _ in range(2)]

        assert [1, 0] == gone
        assert ["young"] == [found.id for found in await self.walk(letters)]
        assert await letters.get("old") is None

    async def test_a_selection_is_pruned_oldest_first_and_no_further_than_asked(self, letters: LetterStore) -> None:
        await letters.put([letter(f"dl_{number}", died_at=DIED_AT + number) for number in range(5)])
        await letters.put([letter("other", queue="billing")])

        gone = await letters.prune(now=DIED_AT, limit=2, selection=Selection(queue="orders"))

        assert 2 == gone
        assert ["other", "dl_2", "dl_3", "dl_4"] == [found.id for found in await self.walk(letters)]

    async def test_a_letter_put_again_after_a_prune_is_a_new_one(self, letters: LetterStore) -> None:
        given = letter(expires_at=DIED_AT)
        await letters.put([given])
        await self.move(letters, "dl_1", WAYS[ReviewState.CLOSED])
        await letters.prune(now=DIED_AT, limit=1)

        await letters.put([given])

        assert (replace(given, state=ReviewState.PENDING), ()) == await self.kept(letters, "dl_1")

    async def test_empty_batches_do_nothing(self, letters: LetterStore) -> None:
        await letters.put([])

        assert [] == await letters.review([])
        assert [] == await self.walk(letters)
