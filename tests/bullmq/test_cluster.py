"""A cluster of three nodes (case BQ-07), a master that sentinels name, and a server that speaks TLS."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from redrive.brokers.bullmq.broker import BullBroker
from redrive.brokers.bullmq.keys import keys_of
from redrive.core import settlement
from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.ports import ClaimEnd, Settle
from redrive.errors import ConfigurationError
from redrive.redis.slots import slot_of
from redrive.runtime.clock import SystemClock
from redrive.stores.redis.claims import RedisClaimStore
from redrive.testing.samples import QUEUE, outgoing
from redrive.testing.servers.processes import GuardedProcess, ServerFailed, free_ports
from redrive.testing.servers.redis import RedisNode, ask
from tests.conftest import PATIENCE
from tests.redis import OLD, install_of

SLOTS = 16_384
LEASE_MS = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisNode]]:
    """Three masters, each with a third of the slots."""
    settings = {"cluster-enabled": "yes", "databases": "1"}
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisNode(install_of(OLD), settings=settings)) for _ in range(3)]
        for number, node in enumerate(nodes):
            first, last = number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            nodes[0].ask("CLUSTER", "MEET", node.host, node.port, node.bus_port)
        until(lambda: all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in nodes))
        yield nodes


def until(is_it: object) -> None:
    deadline = time.monotonic() + PATIENCE.total_seconds()
    assert callable(is_it)
    while not is_it():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # sleep: other processes


async def test_bq07_a_cluster_without_a_hash_tag_is_refused(cluster: list[RedisNode]) -> None:
    with pytest.raises(ConfigurationError, match=r"\{bull\}"):
        await BullBroker(cluster[0].url, clock=SystemClock(), options={QUEUE: {}}).open()
    broker = BullBroker(cluster[0].url, clock=SystemClock())
    await broker.open()
    try:
        with pytest.raises(ConfigurationError, match=r"\{bull\}"):
            await broker.publish([outgoing()])
    finally:
        await broker.close()


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_bq07_a_cluster_with_one_works_whichever_node_is_asked(cluster: list[RedisNode], at: int) -> None:
    url = f"{cluster[at].url}?prefix={{bull{at}}}"
    broker, claims = BullBroker(url, clock=SystemClock()), RedisClaimStore(url, clock=SystemClock())
    await broker.open()
    await claims.open()
    try:
        await broker.publish([outgoing("m-1"), outgoing("m-2", queue="other")])
        waiting = asyncio.create_task(broker.receive("empty", limit=1, lease_ms=LEASE_MS, worker="w1", wait_ms=60_000))
        (received,) = await broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=0)
        (verdict,) = await claims.claim([(QUEUE, "m-1")], lease_ms=LEASE_MS, owner="w1")
        assert isinstance(verdict, Acquired)
        assert [True] == await asyncio.to_thread(broker.renew, [received.lease], lease_ms=LEASE_MS)
        assert [True] == await asyncio.to_thread(claims.renew, [verdict.ref], lease_ms=LEASE_MS)
        assert [True] == await claims.finish([ClaimEnd(ref=verdict.ref, state=ClaimState.PROCESSED)])
        assert [True] == await broker.settle([Settle(lease=received.lease, settlement=settlement.ACK)])
        await broker.publish([outgoing("m-3", queue="empty")])
        assert ["m-3"] == [each.message.id for each in await asyncio.wait_for(waiting, PATIENCE.total_seconds())]
        assert {QUEUE, "other", "empty"} == {depth.queue for depth in await broker.depths()}
    finally:
        await broker.close()
        await claims.close()


async def test_bq07_keys_are_found_again_when_the_node_that_had_them_is_gone() -> None:
    """A fail-over, as it looks from outside: a node is dead and another one has its slots."""
    settings = {"cluster-enabled": "yes", "databases": "1", "cluster-require-full-coverage": "no"}
    with ExitStack() as stack:
        first, second = [stack.enter_context(RedisNode(install_of(OLD), settings=settings)) for _ in range(2)]
        slot = slot_of(keys_of("{bull}", QUEUE)["wait"])
        second.ask("CLUSTER", "ADDSLOTSRANGE", slot, slot)
        first.ask("CLUSTER", "MEET", second.host, second.port, second.bus_port)
        for node in (first, second):
            until(lambda node=node: f" {slot}\n".encode() in node.ask("CLUSTER", "NODES").replace(b"\r", b"") + b"\n")
        broker = BullBroker(f"{first.url}?prefix={{bull}}&publish_timeout=30", clock=SystemClock())
        await broker.open()
        try:
            await broker.publish([outgoing("m-1")])
            (before,) = await broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=0)
            assert [True] == await asyncio.to_thread(broker.renew, [before.lease], lease_ms=LEASE_MS)

            second.kill()
            first.ask("CLUSTER", "SETSLOT", slot, "NODE", first.ask("CLUSTER", "MYID"))
            await broker.publish([outgoing("m-2")])

            (after,) = await broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=0)
            assert "m-2" == after.message.id
            assert [True] == await asyncio.to_thread(broker.renew, [after.lease], lease_ms=LEASE_MS)
        finally:
            await broker.close()


async def test_a_master_is_found_through_its_sentinel(tmp_path: Path) -> None:
    with RedisNode(install_of(OLD)) as master:
        (port,) = free_ports(1)
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main {master.host} {master.port} 1\n",
            "utf-8",
        )
        program = str(install_of(OLD).program)
        sentinel = GuardedProcess([program, str(config), "--sentinel"], log=tmp_path / "log")
        try:
            await asyncio.to_thread(until, lambda: answers(port) or not sentinel.is_running)
            assert sentinel.is_running, sentinel.log_tail()
            broker = BullBroker(f"redis://127.0.0.1:{port}/0?sentinel=main", clock=SystemClock())
            await broker.open()
            await broker.publish([outgoing("m-1")])
            (received,) = await broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=0)
            assert [True] == await asyncio.to_thread(broker.renew, [received.lease], lease_ms=LEASE_MS)
            await broker.close()

            unknown = BullBroker(f"redis://127.0.0.1:{port}/0?sentinel=mian", clock=SystemClock())
            with pytest.raises(Exception, match='knows no master "mian"'):
                await unknown.open()
        finally:
            sentinel.kill()


def answers(port: int) -> bool:
    try:
        return bool(ask("127.0.0.1", port, "PING") == b"PONG")
    except (OSError, ServerFailed):
        return False


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    certificates(tmp_path)
    (port,) = free_ports(1)
    settings = {
        "tls-port": str(port), "tls-cert-file": f"{tmp_path}/server.pem", "tls-key-file": f"{tmp_path}/server.key",
        "tls-ca-cert-file": f"{tmp_path}/ca.pem",
    }  # fmt: skip
    try:
        node = RedisNode(install_of(OLD), settings=settings)
        node.start()
    except ServerFailed as error:
        pytest.skip(f"this Redis was built without TLS: {error}")
    with node:
        place = f"rediss://127.0.0.1:{port}/0"
        with pytest.raises(ConfigurationError, match="certificate"):
            await BullBroker(place, clock=SystemClock()).open()
        options = f"ca={tmp_path}/ca.pem&cert={tmp_path}/client.pem&key={tmp_path}/client.key"
        broker = BullBroker(f"{place}?{options}", clock=SystemClock())
        await broker.open()
        await broker.publish([outgoing("m-1")])
        (received,) = await broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=0)
        assert [True] == await asyncio.to_thread(broker.renew, [received.lease], lease_ms=LEASE_MS)
        await broker.close()


def certificates(folder: Path) -> None:
    """A CA of this test, and what it signs for 127.0.0.1 and for the client."""
    run(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca",
        "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    for name in ("server", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n", "ascii")
        run(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        run(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip


def run(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
