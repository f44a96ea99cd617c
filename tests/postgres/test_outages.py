"""A server that is away, restarts, hangs, is read-only or full: each call says so, and the next one after it works."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.letters.selection import Selection
from redrive.core.ports import ClaimEnd
from redrive.core.settlement import Reason
from redrive.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidMessageError,
    LeaseLostError,
    SchemaTooNewError,
    StorageCorruptError,
    UnsupportedError,
)
from redrive.postgres import Database, search
from redrive.postgres import database as database_module
from redrive.postgres.address import parse
from redrive.postgres.failures import as_redrive_error
from redrive.stores.postgres import PostgresClaimStore, PostgresLetterStore
from redrive.testing.samples import letter, message
from redrive.testing.servers.postgres import USER, PostgresNode, ask
from redrive.testing.servers.proxy import FaultProxy

LEASE_MS = 60_000


async def test_a_restart_costs_nobody_a_call(postgres_alone: PostgresNode) -> None:
    claims = PostgresClaimStore(Database(postgres_alone.url))
    await claims.open()
    (first,) = await claims.claim([("orders", "a")], lease_ms=LEASE_MS, owner="w1")

    await asyncio.to_thread(postgres_alone.restart)
    (second,) = await claims.claim([("orders", "b")], lease_ms=LEASE_MS, owner="w1")

    assert isinstance(first, Acquired)
    assert isinstance(second, Acquired)
    assert [True, True] == claims.renew([first.ref, second.ref], lease_ms=LEASE_MS)
    await claims.close()


async def test_away_is_told_and_ends_by_itself(postgres_alone: PostgresNode) -> None:
    letters = PostgresLetterStore(Database(postgres_alone.url))
    await letters.open()

    postgres_alone.kill()
    with pytest.raises(BrokerUnavailableError, match="does not answer"):
        await letters.put([letter("a")])
    await asyncio.to_thread(postgres_alone.start)
    await letters.put([letter("a")])

    assert 1 == (await letters.stats(Selection())).total
    await letters.close()


async def test_a_server_that_hangs_is_cut_off(postgres_alone: PostgresNode, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = PostgresClaimStore(Database(postgres_alone.url))
    await claims.open()
    (held,) = await claims.claim([("orders", "a")], lease_ms=LEASE_MS, owner="w1")
    assert isinstance(held, Acquired)
    claims.renew([held.ref], lease_ms=LEASE_MS)

    (backend,) = ask(postgres_alone.url, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
    lock = psycopg.connect(postgres_alone.url)
    lock.execute("LOCK TABLE redrive_claim")
    monkeypatch.setattr(database_module, "CALL_MS", 300)
    with pytest.raises(BrokerUnavailableError, match="does not answer"):
        await claims.claim([("orders", "b")], lease_ms=LEASE_MS, owner="w1")
    with pytest.raises(BrokerUnavailableError):
        await asyncio.to_thread(claims.renew, [held.ref], lease_ms=LEASE_MS)
    lock.rollback()
    lock.close()
    monkeypatch.undo()

    assert [True] == claims.renew([held.ref], lease_ms=LEASE_MS)
    assert backend[0] >= 2
    await claims.close()


async def test_a_claim_whose_answer_was_lost_is_told_the_same_again(postgres_proxy: tuple[FaultProxy, str]) -> None:
    proxy, url = postgres_proxy
    claims = PostgresClaimStore(Database(url))
    await claims.open()
    await claims.claim([("orders", "warm")], lease_ms=LEASE_MS, owner="w1")

    proxy.drop()
    (verdict,) = await claims.claim([("orders", "a")], lease_ms=LEASE_MS, owner="w1")

    assert isinstance(verdict, Acquired)
    assert (1, 1) == (verdict.attempts, verdict.ref.token)
    await claims.close()


async def test_a_replica_and_a_full_house_are_outages(postgres_alone: PostgresNode) -> None:
    letters = PostgresLetterStore(Database(postgres_alone.url))
    await letters.open()
    postgres_alone.set("default_transaction_read_only", "on")
    await asyncio.to_thread(postgres_alone.restart)

    with pytest.raises(BrokerUnavailableError, match="takes no writes"):
        await letters.put([letter("a")])
    assert 0 == len((await letters.find(Selection(), limit=5)).letters)
    await letters.close()


async def test_a_claim_that_passed_on_rolls_the_handler_back(postgres: str) -> None:
    claims = PostgresClaimStore(Database(postgres))
    await claims.open()
    ask(postgres, "CREATE TABLE effects (name TEXT)")
    (late,) = await claims.claim([("orders", "a")], lease_ms=0, owner="w1")
    assert isinstance(late, Acquired)
    await claims.claim([("orders", "a")], lease_ms=LEASE_MS, owner="w2")

    async def handle() -> None:
        async with claims.transaction(ClaimEnd(ref=late.ref, state=ClaimState.PROCESSED)) as transaction:
            transaction.execute("INSERT INTO effects VALUES ('late')")

    with pytest.raises(LeaseLostError):
        await handle()
    assert [] == ask(postgres, "SELECT * FROM effects")
    await claims.close()


async def test_open_transactions_are_bounded(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.postgres.transaction.CALL_MS", 200)
    claims = PostgresClaimStore(Database(f"{postgres}?pool=1"))
    await claims.open()
    (held,) = await claims.claim([("orders", "a")], lease_ms=LEASE_MS, owner="w1")
    assert isinstance(held, Acquired)
    end = ClaimEnd(ref=held.ref, state=ClaimState.PROCESSED)

    async with claims.transaction(end):
        with pytest.raises(BrokerUnavailableError, match="transactions of this process are open"):
            await claims.transaction(end).__aenter__()
    with pytest.raises(UnsupportedError):
        claims.transaction(end).execute("SELECT 1")

    await claims.close()


async def test_many_transactions_wait_for_each_other_and_all_end(postgres: str) -> None:
    claims = PostgresClaimStore(Database(f"{postgres}?pool=2"))
    await claims.open()
    ask(postgres, "CREATE TABLE effects (n int)")
    count = 60
    verdicts = await claims.claim([("orders", f"k-{n}") for n in range(count)], lease_ms=LEASE_MS, owner="w1")

    async def handle(n: int) -> None:
        verdict = verdicts[n]
        assert isinstance(verdict, Acquired)
        async with claims.transaction(ClaimEnd(ref=verdict.ref, state=ClaimState.PROCESSED)) as transaction:
            transaction.execute("INSERT INTO effects VALUES (%s)", (n,))
            await asyncio.sleep(0)

    await asyncio.gather(*(handle(n) for n in range(count)))

    assert [(count,)] == ask(postgres, "SELECT count(DISTINCT n) FROM effects")
    await claims.close()


# ---------------------------------------------------------------------------------------------- what lies in the tables


async def test_text_no_column_holds_is_kept_exactly(postgres: str) -> None:
    letters = PostgresLetterStore(Database(postgres))
    await letters.open()
    hard = ["a\x00b", "a\ud800b", "a\x1ab", "a\x1a0000b", "\x1a001a", "k" * 50_000]
    for number, name in enumerate(hard):
        kept = message(name, tenant=name, headers={name: name})
        await letters.put([letter(f"dl_{number}", message=kept, queue=name, dead_letter_queue=name, fingerprint="fp")])

    for number, name in enumerate(hard):
        found = await letters.get(f"dl_{number}")
        assert found is not None
        assert (name, name, name, {name: name}) == (
            found[0].message.id, found[0].queue, found[0].message.tenant, dict(found[0].message.headers),
        )  # fmt: skip
        for chosen in (
            Selection(message_id=name),
            Selection(tenant=name),
            Selection(queue=name),
            Selection(headers=((name, name),)),
        ):
            assert [f"dl_{number}"] == [each.id for each in (await letters.find(chosen, limit=5)).letters]
    await letters.close()


async def test_a_page_that_no_index_helps_ends_early_and_the_walk_sees_all(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.postgres.search.LOOK_AT", 4)
    monkeypatch.setattr("redrive.postgres.search.FEW", 0)
    letters = PostgresLetterStore(Database(postgres))
    await letters.open()
    names = [f"{'odd' if number % 7 == 0 else 'plain'}-{number}" for number in range(30)]
    await letters.put([letter(name, died_at=1_700_000_000_000 + place) for place, name in enumerate(names)])

    found, pages, cursor = list[str](), 0, None
    while pages == 0 or cursor is not None:
        page = await letters.find(Selection(text="M-ODD"), limit=2, cursor=cursor)
        found += [each.id for each in page.letters]
        cursor, pages = page.cursor, pages + 1

    assert [name for name in names if name.startswith("odd")] == found
    assert 8 == pages
    await letters.close()


async def test_people_read_times_in_the_view(postgres: str) -> None:
    letters = PostgresLetterStore(Database(postgres))
    await letters.open()
    await letters.put([letter("a", died_at=1_700_000_000_123)])

    ((state, died_at),) = ask(postgres, "SELECT state, dead_lettered_at FROM redrive_letters")

    assert ("pending", 1_700_000_000_123) == (state, round(died_at.timestamp() * 1_000))
    await letters.close()


async def test_two_schemas_of_one_database_are_two_stores(postgres: str) -> None:
    for name in ("one", "two"):
        letters = PostgresLetterStore(Database(f"{postgres}?schema={name}"))
        await letters.open()
        await letters.put([letter(name)])
        assert {"pending": 1} == (await letters.stats(Selection())).by_state
        await letters.close()

    assert [("one",)] == ask(postgres, "SELECT id FROM one.redrive_letter")
    assert [] == ask(postgres, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")


async def test_many_processes_may_start_on_an_empty_database(postgres: str) -> None:
    stores = [PostgresLetterStore(Database(postgres)) for _ in range(6)]

    await asyncio.gather(*(store.open() for store in stores))

    assert [("min_reader_version", 2), ("schema_version", 4)] == ask(
        postgres, "SELECT * FROM redrive_meta ORDER BY name"
    )
    await asyncio.gather(*(store.close() for store in stores))


async def test_newer_tables_are_refused_and_additive_ones_are_not(postgres: str) -> None:
    letters = PostgresLetterStore(Database(postgres))
    await letters.open()
    await letters.close()
    ask(postgres, "UPDATE redrive_meta SET value = 9 WHERE name = 'schema_version'")
    neighbour = PostgresLetterStore(Database(postgres))
    await neighbour.open()
    await neighbour.close()

    ask(postgres, "UPDATE redrive_meta SET value = 9 WHERE name = 'min_reader_version'")

    with pytest.raises(SchemaTooNewError, match="schema 9"):
        await PostgresLetterStore(Database(postgres)).open()


async def test_without_the_right_to_make_an_extension_texts_are_looked_for_all_the_same(
    postgres_alone: PostgresNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_alone.database() as url:
        ask(url, "CREATE ROLE plain LOGIN")
        ask(url, "CREATE SCHEMA own AUTHORIZATION plain")
        found = {}
        for who, schema in (("plain", "own"), (USER, "mine")):
            letters = PostgresLetterStore(Database(f"{url.replace(f'{USER}@', f'{who}@')}?schema={schema}"))
            await letters.open()
            await letters.put([letter("dl_1", reason=Reason(code="X", text="the Card was declined")), letter("dl_2")])
            page = await letters.find(Selection(text="card W"), limit=10)
            index = ask(url, f"SELECT to_regclass('{schema}.redrive_letter_text') IS NOT NULL")
            found[who] = ([each.id for each in page.letters], index)
            # Where many have it, they are looked through as if there were no index.
            monkeypatch.setattr(search, "FEW", 0)
            assert page == await letters.find(Selection(text="card W"), limit=10)
            monkeypatch.undo()
            await letters.close()

    assert {"plain": (["dl_1"], [(False,)]), USER: (["dl_1"], [(True,)])} == found


# ---------------------------------------------------------------------------------------------- errors


async def test_a_login_that_fails_is_no_outage(postgres: str) -> None:
    with pytest.raises(ConfigurationError, match="refused the login or the database"):
        await PostgresLetterStore(Database(f"{postgres}_never_made")).open()
    with pytest.raises(ConfigurationError):
        await PostgresLetterStore(Database(postgres.replace("redrive@", "nobody:secret@"))).open()


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("08006", BrokerUnavailableError), ("57P01", BrokerUnavailableError), ("57P03", BrokerUnavailableError),
        ("25006", BrokerUnavailableError), ("53300", BrokerUnavailableError), ("53100", BrokerUnavailableError),
        ("55P03", BrokerUnavailableError), ("57014", BrokerUnavailableError), ("40P01", BrokerUnavailableError),
        ("XX001", StorageCorruptError), ("XX002", StorageCorruptError), ("28P01", ConfigurationError),
        ("3D000", ConfigurationError), ("42501", ConfigurationError), ("22003", InvalidMessageError),
        ("54000", InvalidMessageError), ("42P01", BrokerUnavailableError),
    ],
)  # fmt: skip
def test_what_the_server_says_is_one_of_our_errors(state: str, kind: type[Exception]) -> None:
    error = psycopg.errors.lookup(state)("so it says")

    assert kind is type(as_redrive_error(error, "postgresql://host/db"))


def test_the_password_is_never_shown() -> None:
    for url in ("postgresql://ann:secret@host/db", "postgresql://host/db?password=secret&user=ann"):
        address = parse(url)
        assert "secret" not in address.shown + repr(address)
        assert "secret" in address.conninfo


@pytest.mark.parametrize("tail", ["?schema=A;drop", "?schema=", "?pool=0", "?pool=x", "?pool=1000"])
def test_an_option_that_makes_no_sense_is_refused(tail: str) -> None:
    with pytest.raises(ConfigurationError):
        parse(f"postgresql://host/db{tail}")
