"""Text that storage likes to spoil: NUL, lone surrogates, names that are nearly equal (case PF-05, NM-01)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import settlement
from redrive.core.idempotency import Duplicate
from redrive.core.letters.letter import letter_id
from redrive.core.letters.rows import UNREADABLE
from redrive.core.letters.selection import Selection
from redrive.core.message import Properties
from redrive.core.ports import End, Outgoing
from redrive.core.settlement import Reason
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.sqlite.values import numbers, text_in, text_out
from redrive.stores.sqlite import SqliteLetterStore
from redrive.testing.samples import attempt, letter, message, outgoing
from tests.sqlite.steps import WHY, end_all, run, take

BAD = "bad\x00byte\ud800"


@given(st.text(st.characters(codec=None)))
def test_any_text_goes_in_and_comes_out(text: str) -> None:
    bound = text_in(text)

    assert bound is not None
    assert text == text_out(bound)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_are_json(values: list[int]) -> None:
    assert str(values).replace(" ", "") == numbers(values)


async def test_ids_keys_tenants_and_types_of_any_text_come_back_exactly(ledger: SqliteLedger) -> None:
    sent = message(
        f"id-{BAD}", key=f"key-{BAD}", tenant=BAD, content_type=BAD, properties=Properties(type=BAD), body=b"a\x00b"
    )
    await ledger.publish([Outgoing(queue="orders", message=sent)])

    (taken,) = await take(ledger, worker=BAD)

    assert sent == taken.received.message
    assert [True] == await end_all(ledger, [taken])
    await ledger.publish([Outgoing(queue="orders", message=sent)])
    assert [Duplicate()] == [each.verdict for each in await take(ledger)]


async def test_a_failure_with_unkeepable_text_becomes_one_letter_with_marks(
    file: SqliteFile, ledger: SqliteLedger
) -> None:
    await ledger.publish(
        [Outgoing(queue="orders", message=message(headers={"note": "x\x00"}, body=b'{"s":"a\\u0000b"}'))]
    )
    (taken,) = await take(ledger)
    await ledger.commit(
        [End(taken=taken, settlement=settlement.Retry(due_at=0, reason=WHY), entry=attempt(1, error_text=BAD))]
    )
    (again,) = await take(ledger)
    name = letter_id("orders", key="m-1", cycle=0, message_id="m-1", position="1")
    dead = letter(
        name, message=again.received.message, reason=Reason(code="X", text=BAD), error_type=BAD, group_title=BAD,
        history=again.received.history,
    )  # fmt: skip

    assert [True] == await ledger.commit(
        [End(taken=again, settlement=settlement.DeadLetter(reason=dead.reason), letter=dead)]
    )

    letters = SqliteLetterStore(file)
    found = await letters.get(name)
    assert found is not None
    assert "bad\ufffdbyte\ufffd" == found[0].reason.text
    assert again.received.message == found[0].message
    page = await letters.find(Selection(text="BYTE\ufffd"), limit=5)
    assert [name] == [each.id for each in page.letters]


@pytest.mark.parametrize("wanted", ["STRASSE", "ÄRGER", "ärger"])
async def test_a_text_is_found_in_any_case_of_any_alphabet(file: SqliteFile, wanted: str) -> None:
    letters = SqliteLetterStore(file)
    await letters.put([letter("dl_1", reason=Reason(code="X", text="Ärger in der Strasse"))])

    assert 1 == len((await letters.find(Selection(text=wanted), limit=5)).letters)


async def test_a_message_of_a_newer_redrive_that_cannot_be_read_whole_is_handed_out_all_the_same(
    file: SqliteFile, ledger: SqliteLedger
) -> None:
    await ledger.publish([outgoing("m-1"), outgoing("m-2")])
    run(
        file.path,
        """UPDATE redrive_message SET headers = '{"a":{"$colour":"red"}}', properties = '[1]' WHERE seq = 1;
        UPDATE redrive_ready SET entries = 1 WHERE seq = 1;
        INSERT INTO redrive_attempt VALUES (1, 0, '{"outcome":"exploded"}');""",
    )

    first, second = await take(ledger)

    assert {UNREADABLE: '{"a":{"$colour":"red"}}'} == first.received.message.headers
    assert '{"outcome":"exploded"}' == first.received.history[0].error_text
    assert "m-2" == second.received.message.id
