"""What a killed redrive in place had in hand, as its journal tells: no broker, only the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.brokers.rabbitmq.in_place import Recovery
from redrive.brokers.rabbitmq.journal import Item, ItemState, Journal, note_look
from redrive.errors import BrokerUnavailableError, ConfigurationError


def item(number: int, digest: str, *, state: ItemState = ItemState.CONFIRMED, **known: bool | int) -> Item:
    given = {"has_id": False, **known}
    return Item(number=number, position=number, digest=digest, state=state, **given)  # type: ignore[arg-type]


def test_a_message_that_comes_back_at_the_head_is_known() -> None:
    recovery = Recovery((item(1, "a"), item(2, "b")))

    found = [recovery.match(digest, is_redelivered=True) for digest in ("b", "c")]

    assert [2, None] == [each and each.number for each in found]
    assert [1] == [each.number for each in recovery.unanswered]


def test_a_twin_behind_something_new_is_not_taken_for_one_that_is_gone() -> None:
    recovery = Recovery((item(1, "a"), item(2, "b")))

    assert recovery.match("c", is_redelivered=False) is None
    assert recovery.match("a", is_redelivered=True) is None


def test_a_twin_that_was_never_handed_out_is_new() -> None:
    assert Recovery((item(1, "a"),)).match("a", is_redelivered=False) is None


def test_a_row_of_a_message_that_was_looked_at_speaks_for_none() -> None:
    assert Recovery((item(1, "a", was_looked_at=True),)).match("a", is_redelivered=True) is None


def test_a_quorum_queue_counts_and_the_count_must_fit() -> None:
    rows = (item(1, "a", deliveries=2),)

    assert Recovery(rows).match("a", is_redelivered=True, deliveries=2) is None
    assert Recovery(rows).match("a", is_redelivered=True, deliveries=3) == rows[0]


def test_before_a_confirm_either_twin_stands_for_the_other_wherever_it_is() -> None:
    recovery = Recovery((item(1, "a", state=ItemState.INTENDED), item(2, "a", state=ItemState.INTENDED)))

    found = [recovery.match(digest, is_redelivered=True) for digest in ("new", "a", "a", "a")]

    assert [None, 1, 2, None] == [each and each.number for each in found]


def test_one_with_an_id_is_known_anywhere() -> None:
    recovery = Recovery((item(1, "a", has_id=True),))

    assert recovery.match("new", is_redelivered=False) is None
    assert recovery.match("a", is_redelivered=False) is not None


# ---------------------------------------------------------------------------------------------------- the journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = Journal(path, broker="b", queue="q")
    yield opened
    opened.close()


def test_an_interrupted_batch_goes_on_under_its_own_name_and_numbers(journal: Journal, path: Path) -> None:
    batch = journal.begin(actor="ann", now=1)
    journal.intend(batch, [item(1, "a", state=ItemState.INTENDED), item(2, "b", state=ItemState.INTENDED)])
    journal.confirm(batch, [1])
    journal.close()

    again = Journal(path, broker="b", queue="q")
    resumed = again.begin(actor="bob", now=9)
    again.close()

    assert (batch.id, "ann", 1, 3) == (resumed.id, resumed.actor, resumed.started_at, resumed.next_item)
    assert [ItemState.CONFIRMED, ItemState.INTENDED] == [each.state for each in resumed.items]


def test_what_is_finished_is_counted_and_forgotten_and_an_ended_batch_is_over(journal: Journal) -> None:
    batch = journal.begin(actor="ann", now=1)
    journal.intend(batch, [item(1, "a", state=ItemState.INTENDED)])
    journal.finish(batch, [1])
    after = journal.begin(actor="ann", now=2)
    journal.end(batch)
    new = journal.begin(actor="ann", now=3)

    assert (batch.id, 1, ()) == (after.id, after.moved, after.items)
    assert (True, 0, 1) == (new.id != batch.id, new.moved, new.next_item)


def test_a_look_is_noted_on_the_open_rows_of_its_queue_only(journal: Journal, path: Path) -> None:
    batch = journal.begin(actor="ann", now=1)
    journal.intend(batch, [item(1, "a", state=ItemState.INTENDED)])

    note_look(path, broker="b", queue="other")
    before = journal.begin(actor="ann", now=2).items[0].was_looked_at
    note_look(path, broker="b", queue="q")

    assert (False, True) == (before, journal.begin(actor="ann", now=2).items[0].was_looked_at)
    note_look(path.with_name("none.db"), broker="b", queue="q")


def test_two_processes_do_not_redrive_one_queue_at_once(journal: Journal, path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Another process redrives queue"):
        Journal(path, broker="b", queue="q")

    Journal(path, broker="b", queue="other").close()


def test_a_journal_that_cannot_be_written_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(BrokerUnavailableError, match="Nothing was sent"):
        Journal(tmp_path / "file" / "journal.db", broker="b", queue="q")
