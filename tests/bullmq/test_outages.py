"""Redis away, restarted, failed over, full, or refusing: nothing that was accepted is lost; the error says what is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import pytest

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core import settlement
from redrive.core.ports import Published, Received, Settle
from redrive.core.settlement import Reason
from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.redis.address import parse
from redrive.redis.failures import Refusal, refused
from redrive.redis.scripts import Script
from redrive.redis.server import Server
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE, outgoing
from redrive.testing.servers.proxy import FaultProxy, Way
from redrive.testing.servers.redis import RedisNode
from tests.conftest import PATIENCE
from tests.redis import OLD, Redis, install_of

LEASE_MS = 60_000


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[BullBroker]:
    broker = BullBroker(url, clock=SystemClock())
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def take(broker: BullBroker, *, limit: int = 100, wait_ms: int = 0) -> list[Received]:
    return await broker.receive(QUEUE, limit=limit, lease_ms=LEASE_MS, worker="w1", wait_ms=wait_ms)


async def take_when_back(broker: BullBroker, count: int) -> list[Received]:
    """As a worker does: again and again, whatever the server says meanwhile."""
    taken: list[Received] = []
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while len(taken) < count:
            try:
                taken += await take(broker, wait_ms=200)
            except BrokerUnavailableError:
                await asyncio.sleep(0.05)  # sleep: between two tries
    return taken


def names(taken: list[Received]) -> list[str]:
    return [received.message.id for received in taken]


async def test_a_publish_waits_for_a_server_that_is_restarted_and_is_there_once(redis_alone: RedisNode) -> None:
    async with opened(redis_alone.url) as broker:
        await broker.publish([outgoing("before")])
        redis_alone.kill()
        publishing = asyncio.create_task(broker.publish([outgoing("while")]))
        with pytest.raises(BrokerUnavailableError, match="cannot be reached"):
            await take(broker)

        await asyncio.to_thread(redis_alone.start)

        assert [Published()] == await asyncio.wait_for(publishing, PATIENCE.total_seconds())
        assert ["before", "while"] == names(await take_when_back(broker, 2))


async def test_what_is_in_hand_can_be_settled_after_a_restart(redis_alone: RedisNode) -> None:
    async with opened(redis_alone.url) as broker:
        await broker.publish([outgoing("done"), outgoing("waits")])
        (received,) = await take(broker, limit=1)
        redis_alone.kill()
        with pytest.raises(BrokerUnavailableError):
            await broker.settle([Settle(lease=received.lease, settlement=settlement.ACK)])
        await asyncio.to_thread(redis_alone.start)

        async with asyncio.timeout(PATIENCE.total_seconds()):
            while True:
                with contextlib.suppress(BrokerUnavailableError):
                    assert [True] == await broker.settle([Settle(lease=received.lease, settlement=settlement.ACK)])
                    break

        assert ["waits"] == names(await take_when_back(broker, 1))
        assert [True] == await asyncio.to_thread(broker.renew, [(await broker_lease(broker))], lease_ms=LEASE_MS)


async def broker_lease(broker: BullBroker) -> object:
    """The lease of a message that is made for it."""
    await broker.publish([outgoing("for the lease")])
    (received,) = await take_when_back(broker, 1)
    return received.lease


async def test_what_could_not_be_given_back_while_the_server_was_away_comes_at_once(redis_alone: RedisNode) -> None:
    async with opened(redis_alone.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(3)])
        taken = await take(broker)
        redis_alone.kill()
        back = settlement.Requeue(due_at=SystemClock().now(), reason=Reason(code="CLAIM_UNAVAILABLE", text="away"))
        with pytest.raises(BrokerUnavailableError):
            await broker.settle([Settle(lease=each.lease, settlement=back) for each in taken[:2]])
        await asyncio.to_thread(redis_alone.start)

        again = await take_when_back(broker, 2)

        assert [("m-0", 1), ("m-1", 1)] == [(each.message.id, each.starts) for each in again]
        assert [True] == await broker.settle([Settle(lease=taken[2].lease, settlement=settlement.ACK)])


async def test_cuts_lose_and_repeat_no_publish(redis: Redis) -> None:
    with FaultProxy(redis.host, redis.port) as proxy:
        async with opened(redis.url_by(proxy)) as broker:
            for number in range(40):
                publishing = asyncio.create_task(broker.publish([outgoing(f"m-{number}")]))
                if number % 5 == 4:
                    await asyncio.sleep(0)
                    proxy.drop()
                assert [Published()] == await asyncio.wait_for(publishing, PATIENCE.total_seconds())
            proxy.heal()

            assert [f"m-{number}" for number in range(40)] == names(await take_when_back(broker, 40))


async def test_cuts_while_taking_and_settling_lose_nothing_and_repeat_nothing_settled(redis: Redis) -> None:
    with FaultProxy(redis.host, redis.port) as proxy:
        async with opened(redis.url) as sender, opened(redis.url_by(proxy)) as broker:
            await sender.publish([outgoing(f"m-{number}") for number in range(200)])
            done: list[str] = []
            cuts = {0, 40, 80, 120, 160}
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while len(set(done)) < 200:
                    try:
                        done += await take_and_settle(broker, proxy, cuts, at=len(done) // 20 * 20)
                    except BrokerUnavailableError:
                        await asyncio.sleep(0.05)  # sleep: between two tries

            assert 200 == len(done) == len(set(done))
            (depth,) = await sender.depths()
            assert (0, 0, 0) == (depth.ready, depth.scheduled, depth.leased)


async def take_and_settle(broker: BullBroker, proxy: FaultProxy, cuts: set[int], *, at: int) -> list[str]:
    """Ten messages; the connection is cut while they are taken at a place in `cuts`, and at the next while settled."""
    taking = asyncio.create_task(take(broker, limit=10))
    await asyncio.sleep(0)
    if at in cuts and at % 80 == 0:
        cuts.remove(at)
        proxy.drop()
    taken = await taking
    settling = asyncio.create_task(
        broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])
    )
    await asyncio.sleep(0)
    if at in cuts:
        cuts.remove(at)
        proxy.drop()
    await settling
    return names(taken)


async def test_an_end_whose_answer_was_lost_is_done_for_who_sends_it_again_later(redis: Redis) -> None:
    with FaultProxy(redis.host, redis.port) as proxy:
        async with opened(redis.url_by(proxy)) as broker:
            await broker.publish([outgoing("first"), outgoing("done")])
            first, end = [Settle(lease=each.lease, settlement=settlement.ACK) for each in await take(broker)]
            await broker.settle([first])  # from now on the server knows the script
            proxy.stall(Way.TO_CLIENT)
            settling = asyncio.create_task(broker.settle([end]))
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while redis.ask("LLEN", f"bull:{QUEUE}:active"):
                    await asyncio.sleep(0.01)  # sleep: the server gets it
            proxy.refuse()
            proxy.drop()
            with pytest.raises(BrokerUnavailableError):
                await settling
            proxy.heal()

            async with asyncio.timeout(PATIENCE.total_seconds()):
                while not (settled := await settled_when_back(broker, end)):
                    await asyncio.sleep(0.05)  # sleep: between two tries

            assert [True] == settled
            assert [False] == await broker.settle([end])


async def settled_when_back(broker: BullBroker, end: Settle) -> list[bool]:
    """Nothing while the server is away."""
    with contextlib.suppress(BrokerUnavailableError):
        return await broker.settle([end])
    return []


async def test_a_full_server_refuses_publishes_and_lets_workers_go_on(redis_alone: RedisNode) -> None:
    async with opened(redis_alone.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(50)])
        redis_alone.ask("CONFIG", "SET", "maxmemory", "1mb")

        with pytest.raises(BrokerUnavailableError, match="memory is full") as caught:
            await broker.publish([outgoing("too much", body=b'"%s"' % (b"x" * 1_000))])
        taken = await take(broker)
        settled = await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])

        assert "1 of 1 messages were not accepted" in caught.value.text
        assert 50 == len(taken)
        assert [True] * 50 == settled
        redis_alone.ask("CONFIG", "SET", "maxmemory", "0")
        assert [Published()] == await broker.publish([outgoing("again")])
        assert ["again"] == names(await take(broker))


async def test_a_failover_is_followed(redis_alone: RedisNode) -> None:
    with RedisNode(redis_alone.install) as replica:
        replica.ask("REPLICAOF", redis_alone.host, redis_alone.port)
        url = f"redis://{redis_alone.host}:{redis_alone.port},{replica.host}:{replica.port}/0"
        async with opened(url) as broker:
            await broker.publish([outgoing("before")])
            await asyncio.to_thread(until_replicated, redis_alone, replica)
            redis_alone.kill()
            publishing = asyncio.create_task(broker.publish([outgoing("while")]))
            await asyncio.sleep(0.3)  # sleep: it finds a replica that takes no writes
            replica.ask("REPLICAOF", "NO", "ONE")

            assert [Published()] == await asyncio.wait_for(publishing, PATIENCE.total_seconds())
            assert ["before", "while"] == names(await take_when_back(broker, 2))


def until_replicated(master: RedisNode, replica: RedisNode) -> None:
    assert 1 == master.ask("WAIT", 1, 30_000) or b"before" in str(replica.ask("KEYS", "*")).encode()


async def test_a_master_that_becomes_a_replica_is_left(redis_alone: RedisNode) -> None:
    with RedisNode(redis_alone.install) as other:
        url = f"redis://{redis_alone.host}:{redis_alone.port},{other.host}:{other.port}/0"
        async with opened(url) as broker:
            redis_alone.ask("REPLICAOF", other.host, other.port)

            assert [Published()] == await broker.publish([outgoing("m-1")])

            assert 1 == other.ask("LLEN", f"bull:{QUEUE}:wait")


async def test_a_server_that_stands_still_is_given_up_and_found_again(redis_alone: RedisNode) -> None:
    async with opened(f"{redis_alone.url}?answer_timeout=0.5") as broker:
        await broker.publish([outgoing("m-1")])
        redis_alone.pause()
        try:
            with pytest.raises(BrokerUnavailableError, match="does not answer"):
                await asyncio.wait_for(take(broker), PATIENCE.total_seconds())
        finally:
            redis_alone.resume()

        taken = await take_when_back(broker, 1)

    assert [("m-1", 1)] == [(received.message.id, received.starts) for received in taken]


async def test_scripts_that_the_server_forgot_are_sent_again(redis: Redis) -> None:
    async with opened(redis.url) as broker:
        await broker.publish([outgoing("m-1")])
        redis.ask("SCRIPT", "FLUSH")
        (received,) = await take(broker)
        redis.ask("SCRIPT", "FLUSH")

        assert [True] == await asyncio.to_thread(broker.renew, [received.lease], lease_ms=LEASE_MS)
        redis.ask("SCRIPT", "FLUSH")
        assert [True] == await broker.settle([Settle(lease=received.lease, settlement=settlement.ACK)])


async def test_keys_of_somebody_else_are_named(redis: Redis) -> None:
    redis.ask("SET", f"bull:{QUEUE}:wait", "not a list")
    async with opened(redis.url) as broker:
        with pytest.raises(ConfigurationError, match="holds something else"):
            await broker.publish([outgoing()])


async def test_who_may_not_ask_for_the_living_is_told_so(redis_alone: RedisNode) -> None:
    async with opened(redis_alone.url) as broker:
        await broker.publish([outgoing()])
        redis_alone.ask("ACL", "SETUSER", "default", "-hgetall")

        with pytest.raises(ConfigurationError, match="this user may not do that"):
            await broker.gone(["w1"])


async def test_a_connection_lost_while_a_script_is_loaded_is_no_answer_lost() -> None:
    """The script was not run, so it is sent again, also where it may not be run twice."""
    asked: list[bytes] = []
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        while command := await command_of(reader):
            asked.append(command[0])
            if command[0] == b"SCRIPT" and asked.count(b"SCRIPT") == 1:
                break
            known = b":7\r\n" if asked.count(b"SCRIPT") else b"-NOSCRIPT no such script\r\n"
            writer.write({b"INFO": b"$0\r\n\r\n", b"EVALSHA": known}.get(command[0], b"+OK\r\n"))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = Server(parse(f"redis://127.0.0.1:{port}"), clock=SystemClock())
        await server.open()
        assert 7 == await server.run(Script("one", "return 7"), ["k"], [], wait_ms=30_000, again=False)
        await server.close()
        await asyncio.gather(*(task for task in serving if task is not None))


async def command_of(reader: asyncio.StreamReader) -> list[bytes]:
    """One command as a client sends it; empty at the end of the connection."""
    try:
        count = int((await reader.readuntil())[1:])
        return [(await reader.readexactly(int((await reader.readuntil())[1:]) + 2))[:-2] for _ in range(count)]
    except (asyncio.IncompleteReadError, ConnectionError):
        return []


async def test_a_wrong_password_is_told_and_never_shown() -> None:
    with RedisNode(install_of(OLD), settings={"requirepass": "right-one"}) as node:
        place = f"{node.host}:{node.port}"
        for url, words in {
            f"redis://:wr0ng@{place}/0": "refused the user or the password",
            f"redis://{place}/0": "wants a password",
        }.items():
            with pytest.raises(ConfigurationError, match=words) as caught:
                await BullBroker(url, clock=SystemClock()).open()
            assert "wr0ng" not in str(caught.value)

        async with opened(f"redis://:right-one@{place}/0") as broker:
            await broker.publish([outgoing()])
            (received,) = await take(broker)
            assert [True] == await asyncio.to_thread(broker.renew, [received.lease], lease_ms=LEASE_MS)


async def test_nobody_at_the_port_is_told(redis_alone: RedisNode) -> None:
    redis_alone.kill()

    with pytest.raises(BrokerUnavailableError, match=f"{redis_alone.port}") as caught:
        await BullBroker(redis_alone.url, clock=SystemClock()).open()

    assert "Is it running" in (caught.value.hint or "")


async def test_tls_at_a_plain_port_and_a_database_that_is_none_are_explained(redis_alone: RedisNode) -> None:
    place = f"{redis_alone.host}:{redis_alone.port}"
    with pytest.raises(BrokerUnavailableError) as plain:
        await BullBroker(f"rediss://{place}/0?connection_timeout=1", clock=SystemClock()).open()
    with pytest.raises(ConfigurationError, match="no such database") as missing:
        await BullBroker(f"redis://{place}/999", clock=SystemClock()).open()

    assert "TLS" in (plain.value.hint or "")
    assert "databases" in (missing.value.hint or "")


class Admin:
    """A connection that stays, for when the server takes no more."""

    def __init__(self, node: RedisNode) -> None:
        self._socket = socket.create_connection((node.host, node.port), timeout=30)
        self._reader = hiredis.Reader()

    def ask(self, *command: str) -> Any:
        self._socket.sendall(hiredis.pack_command(command))
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        assert not isinstance(reply, Exception), reply
        return reply

    def close(self) -> None:
        self._socket.close()


async def test_a_server_without_a_free_connection_is_waited_for(redis_alone: RedisNode) -> None:
    async with opened(redis_alone.url) as broker:
        await broker.publish([outgoing("before")])
        with contextlib.closing(Admin(redis_alone)) as admin:
            admin.ask("CONFIG", "SET", "maxclients", "1")
            admin.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

            publishing = asyncio.create_task(broker.publish([outgoing("while")]))
            with pytest.raises(BrokerUnavailableError):
                await BullBroker(redis_alone.url, clock=SystemClock()).open()
            with pytest.raises(BrokerUnavailableError):
                await take(broker)
            assert not publishing.done()
            admin.ask("CONFIG", "SET", "maxclients", "1000")

        assert [Published()] == await asyncio.wait_for(publishing, PATIENCE.total_seconds())
        assert ["before", "while"] == names(await take_when_back(broker, 2))


def test_a_full_house_passes_and_is_explained() -> None:
    error = refused("here", Refusal("ERR max number of clients reached"))

    assert isinstance(error, BrokerUnavailableError)
    assert "maxclients" in error.text
    assert "maxclients" in (error.hint or "")


async def test_a_server_that_reads_its_data_is_waited_for(redis_alone: RedisNode) -> None:
    async with opened(redis_alone.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(200)])
        await asyncio.to_thread(until_rewritten, redis_alone)
        redis_alone.kill()
        # As long as with far more data: 10 ms a key.
        redis_alone._settings.update({"key-load-delay": "10000", "loading-process-events-interval-bytes": "1024"})
        starting = asyncio.create_task(asyncio.to_thread(redis_alone.start))
        said: list[str] = []
        while not starting.done():
            try:
                await take(broker, limit=1)
            except BrokerUnavailableError as error:
                said.append(error.text)
            await asyncio.sleep(0.05)  # sleep: another process
        await starting
        # What was taken while the test looked on was in the hand of this very broker.
        redis_alone.ask("CONFIG", "SET", "key-load-delay", "0")
        (depth,) = await broker.depths()

    assert any("reads its data" in text for text in said)
    assert 200 == depth.ready + depth.leased


def until_rewritten(node: RedisNode) -> None:
    """A server answers now and then while it reads a snapshot, and not while it reads few commands."""
    node.ask("BGREWRITEAOF")
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while b"aof_rewrite_in_progress:1" in (info := node.ask("INFO", "persistence")) or b"scheduled:1" in info:
        assert time.monotonic() < deadline
        time.sleep(0.02)  # sleep: another process
