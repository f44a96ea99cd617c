"""Connections to RabbitMQ: hosts, credentials, TLS, and every way in which one ends and comes back.
Case SD-04.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection

from redrive.brokers.rabbitmq.address import parse
from redrive.brokers.rabbitmq.broker import RabbitBroker
from redrive.brokers.rabbitmq.connection import RECONNECT, Lane
from redrive.core import settlement
from redrive.core.ports import Settle
from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.runtime.clock import SystemClock
from redrive.testing.clock import FakeClock
from redrive.testing.samples import outgoing
from redrive.testing.servers.processes import free_ports
from redrive.testing.servers.proxy import FaultProxy, Way
from redrive.testing.servers.rabbitmq import RabbitNode
from tests.rabbit import NEW, OLD, Rabbit, RabbitAlone, install_of
from tests.rabbitmq.connected import PATIENCE_S, connected, receive, take, take_through, until

# ------------------------------------------------------------------------------------------------- addresses


def test_an_address_is_read_with_all_its_parts() -> None:
    address = parse("amqp://us%40er:p%2Fw@h1:5673,h2,[::1]:7/my%2Fhost?heartbeat=5&connection_timeout=2&prefetch=7")

    assert (("h1", 5673), ("h2", 5672), ("::1", 7)) == address.hosts
    assert ("us@er", "p/w", "my/host") == (address.user, address.password, address.vhost)
    assert (5, 2_000, 7) == (address.heartbeat_s, address.connect_timeout_ms, address.max_prefetch)


@pytest.mark.parametrize(("url", "vhost"), [
    ("amqp://h", "/"), ("amqp://h/", "/"), ("amqp://h/%2F", "/"), ("amqp://h/a", "a"), ("amqp://h/a/b", "a/b"),
])  # fmt: skip
def test_the_virtual_host_is_the_path(url: str, vhost: str) -> None:
    assert vhost == parse(url).vhost


def test_without_anything_said_it_is_the_guest_of_this_machine() -> None:
    address = parse("amqp://localhost")

    assert ((("localhost", 5672),), "guest", "guest") == (address.hosts, address.user, address.password)
    assert ("joe", "") == (parse("amqp://joe@h").user, parse("amqp://joe@h").password)
    assert (("h", 5671),) == parse("amqps://h").hosts


@pytest.mark.parametrize(("url", "says"), [
    ("http://h", "no RabbitMQ URL"), ("amqp://h?heartbit=5", "Did you mean heartbeat"), ("amqp://h:0", '"h:0"'),
    ("amqp://h:x", '"h:x"'), ("amqp://h?heartbeat=-1", "heartbeat"), ("amqp://h?connection_timeout=0", "longer"),
    ("amqp://h?prefetch=0", "prefetch"), ("amqp://h?ca=/x", "amqps"), ("amqps://h?ca=/nowhere", "is not there"),
    ("amqps://h?key=/etc/hostname", "no cert"), ("amqp://h?publish_timeout=soon", "duration"),
    ("amqp://[::1", "::1"), ("amqp://[::1]7", "::1"),
])  # fmt: skip
def test_a_wrong_address_says_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse(url.replace("://", "://me:s3cret@"))


def test_no_text_of_an_address_has_the_password() -> None:
    address = parse("amqp://me:s3cret@h/v")

    assert "s3cret" not in f"{address!r} {address} {address.where}"


def test_what_pika_does_without_being_asked_to_in_public_is_there() -> None:
    private = (
        "_on_data_available", "_proto_connection_made", "_process_frame", "_output_marshaled_frames",
        "_terminate_stream",
    )  # fmt: skip

    assert [] == [name for name in private if not callable(getattr(AsyncioConnection, name, None))]


# ------------------------------------------------------------------------------------------------- opening


async def test_the_first_host_that_answers_is_taken(rabbit: Rabbit) -> None:
    vhost = rabbit.vhost
    (dead,) = free_ports(1)
    url = vhost.url_by("127.0.0.1", vhost.amqp_port).replace("@127.0.0.1", f"@127.0.0.1:{dead},127.0.0.1")

    for _ in range(5):
        async with connected(url) as broker:
            await broker.publish([outgoing("m-1")])


@pytest.mark.parametrize(("change", "says"), [
    (lambda vhost: vhost.url.replace(f":{vhost.password}@", ":wrong@"), "refused the user or the password"),
    (lambda vhost: vhost.url.replace(f"{vhost.user}:", "nobody:"), "refused the user or the password"),
    (lambda vhost: vhost.url.rpartition("/")[0] + "/nowhere", "virtual host"),
    (lambda vhost: vhost.url_by("127.0.0.1", vhost.management_port), "does not speak AMQP"),
], ids=["password", "user", "virtual host", "port"])  # fmt: skip
async def test_what_trying_again_would_not_change_is_a_configuration_error(
    rabbit: Rabbit, change: Any, says: str
) -> None:
    broker = RabbitBroker(change(rabbit.vhost), clock=SystemClock())

    with pytest.raises(ConfigurationError, match=says) as raised:
        await broker.open()

    assert rabbit.vhost.password not in str(raised.value)


async def test_a_broker_that_is_not_there_is_unavailable() -> None:
    (port,) = free_ports(1)
    broker = RabbitBroker(f"amqp://me:s3cret@127.0.0.1:{port}/", clock=SystemClock())

    with pytest.raises(BrokerUnavailableError, match=f"127.0.0.1:{port}.*refused") as raised:
        await broker.open()

    assert "s3cret" not in str(raised.value)
    await broker.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a port where connections are taken by the kernel and nobody ever says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"amqp://127.0.0.1:{listener.getsockname()[1]}/"


async def test_one_that_does_not_answer_is_given_up_after_its_time(silent: str) -> None:
    broker = RabbitBroker(f"{silent}?connection_timeout=0.3", clock=SystemClock())

    with pytest.raises(BrokerUnavailableError, match="no answer within 300 ms"):
        await asyncio.wait_for(broker.open(), PATIENCE_S)


async def test_opening_can_be_stopped_at_any_time(silent: str) -> None:
    broker = RabbitBroker(silent, clock=SystemClock())
    opening = asyncio.create_task(broker.open())
    await asyncio.sleep(0.05)  # sleep: it is on its way by then, and waits for ever

    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(opening, PATIENCE_S)


# ------------------------------------------------------------------------------------------------- lost and found


@pytest.mark.parametrize("way", ["drop", "hang_up"])
async def test_a_lost_connection_makes_leases_stale_and_messages_come_again(
    rabbit: Rabbit, rabbit_proxy: FaultProxy, way: str
) -> None:
    async with connected(rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)) as broker:
        await broker.publish([outgoing("m-1")])
        (first,) = await take(broker, 1)
        getattr(rabbit_proxy, way)()
        await until(lambda: broker.renew([first.lease], lease_ms=1) == [False])

        (again,) = await take_through(broker, 1)

        ends = [Settle(lease=each.lease, settlement=settlement.ACK) for each in (first, again)]
        assert [False, True] == await broker.settle(ends)
        assert again.redelivered


async def test_a_receiver_that_waits_is_told_that_the_connection_is_lost(
    rabbit: Rabbit, rabbit_proxy: FaultProxy
) -> None:
    async with connected(rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)) as broker:
        await broker.publish([outgoing("m-1")])
        await take(broker, 1)
        waiting = asyncio.create_task(receive(broker, 1, wait_ms=60_000))
        await asyncio.sleep(0.1)  # sleep: it waits by then, or will be told at once
        rabbit_proxy.refuse()
        rabbit_proxy.drop()

        with pytest.raises(BrokerUnavailableError):
            await asyncio.wait_for(waiting, PATIENCE_S)
        with pytest.raises(BrokerUnavailableError, match="cannot be reached"):
            await receive(broker, 1, wait_ms=50)

        rabbit_proxy.heal()
        assert 1 == len(await take_through(broker, 1))


async def test_a_peer_that_falls_silent_is_missed_by_its_heartbeat(rabbit: Rabbit, rabbit_proxy: FaultProxy) -> None:
    async with connected(f"{rabbit.vhost.url_by('127.0.0.1', rabbit_proxy.port)}?heartbeat=1") as broker:
        await broker.publish([outgoing("m-1")])
        (first,) = await take(broker, 1)
        rabbit_proxy.stall(Way.TO_CLIENT)
        await until(lambda: broker.renew([first.lease], lease_ms=1) == [False])
        rabbit_proxy.heal()

        assert ["m-1"] == [received.message.id for received in await take_through(broker, 1)]


async def test_a_connection_closed_in_one_direction_is_a_lost_one(rabbit: Rabbit, rabbit_proxy: FaultProxy) -> None:
    async with connected(rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)) as broker:
        await broker.publish([outgoing("m-1")])
        (first,) = await take(broker, 1)

        rabbit_proxy.half_close(Way.TO_CLIENT)

        await until(lambda: broker.renew([first.lease], lease_ms=1) == [False])
        assert 1 == len(await take_through(broker, 1))


async def test_after_a_restart_of_the_broker_everything_goes_on(rabbit_alone: RabbitAlone) -> None:
    async with connected(rabbit_alone.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(10)])
        await take(broker, 3)

        await asyncio.to_thread(rabbit_alone.node.restart)
        await broker.publish([outgoing("after")])

        taken = await take_through(broker, 11)
        assert {"after", *(f"m-{number}" for number in range(10))} == {received.message.id for received in taken}


async def test_after_a_kill_of_the_broker_everything_goes_on(rabbit_alone: RabbitAlone) -> None:
    async with connected(rabbit_alone.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(10)])
        await take(broker, 3)
        # RabbitMQ forgets a quorum queue, confirmed messages and all, when it is killed in the first half second of it.
        await asyncio.sleep(3)  # sleep: see above; the broker does not say when it is done

        await asyncio.to_thread(rabbit_alone.node.kill)
        publishing = asyncio.create_task(broker.publish([outgoing("after")]))
        await asyncio.to_thread(rabbit_alone.node.start)
        await asyncio.wait_for(publishing, PATIENCE_S)

        taken = await take_through(broker, 11)
        assert {"after", *(f"m-{number}" for number in range(10))} == {received.message.id for received in taken}


async def test_an_administrator_who_closes_the_connection_is_only_an_interruption(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1")])
        await take(broker, 1)

        def close_all() -> bool:
            # The API learns of a connection some seconds after it was made.
            known = rabbit.server.api("GET", f"/api/vhosts/{rabbit.vhost.name}/connections")
            for each in known:
                rabbit.server.api("DELETE", f"/api/connections/{quote(each['name'], safe='')}")
            return bool(known)

        await until(close_all)

        assert 1 == len(await take_through(broker, 1))


def test_many_clients_that_lost_a_broker_at_once_come_back_apart() -> None:
    """200 of them, away for 15 s: in no 100 ms does more than a fifth of the attempts fall, all are back in time."""
    import random

    draws = random.Random(7)
    attempts: list[float] = []
    back: list[float] = []
    for _ in range(200):
        at, number = 0.0, 0
        while True:
            number += 1
            at += RECONNECT.delay_ms(number, draws.random())
            attempts.append(at)
            if at >= 15_000:
                back.append(at)
                break

    early = [at for at in attempts if at < 2_000]
    assert all(sum(start <= at < start + 100 for at in early) <= len(attempts) / 5 for start in range(0, 2_000, 10))
    assert max(back) <= 15_000 + 30_000
    assert all(RECONNECT.delay_ms(number, 0.999_999) <= 30_000 for number in range(1, 50))


async def test_a_connection_that_never_stands_is_tried_less_and_less(rabbit: Rabbit, rabbit_proxy: FaultProxy) -> None:
    clock = FakeClock()
    lane = Lane(parse(rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)), clock=clock, purpose="test")
    await lane.start()
    rabbit_proxy.refuse()
    rabbit_proxy.drop()
    await until(lambda: lane.link is None)

    for _ in range(8):
        while not clock.sleepers:
            await asyncio.sleep(0.01)  # sleep: asked again until it is so
        await clock.advance_to_next()
    slept = clock.monotonic_ms()

    assert 0 < slept <= 1_000 + 1_000 + 2_000 + 4_000 + 8_000 + 16_000 + 30_000 + 30_000
    rabbit_proxy.heal()
    while lane.link is None:
        if clock.sleepers:
            await clock.advance_to_next()
        await asyncio.sleep(0.01)  # sleep: asked again until it is so
    await lane.close()


# ------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server's and a client's certificate, and another CA."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, timeout=60)

    for ca in ("ca", "other"):
        openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={ca}", "-keyout",
            f"{ca}.key", "-out", f"{ca}.pem",
        )  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out",
                f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days",
                "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    for each in folder.iterdir():
        each.chmod(0o644)
    return folder


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_tls_with_a_client_certificate_and_nothing_less(certificates: Path, version: str) -> None:
    install = install_of(version)
    if install.root is not None:
        pytest.skip("the server of this version lives in another file system, where the certificates are not")
    (port,) = free_ports(1)
    settings = {
        "listeners.ssl.default": f"127.0.0.1:{port}",
        "ssl_options.cacertfile": str(certificates / "ca.pem"),
        "ssl_options.certfile": str(certificates / "server.pem"),
        "ssl_options.keyfile": str(certificates / "server.key"),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    node = RabbitNode(install, settings=settings)
    try:
        await asyncio.to_thread(node.start)
        with node.vhost() as vhost:
            url = vhost.url_by("localhost", port).replace("amqp://", "amqps://")
            trusted = f"{url}?ca={certificates}/ca.pem"
            good = f"{trusted}&cert={certificates}/client.pem&key={certificates}/client.key"

            async with connected(good) as broker:
                await broker.publish([outgoing("m-1", body=b"x" * 300_000)])
                (received,) = await take(broker, 1)
                assert 300_000 == len(received.message.body)
            refused = {
                trusted: "ended the TLS handshake",
                f"{url}?ca={certificates}/other.pem": "is not trusted",
                url: "is not trusted",
            }
            for bad, says in refused.items():
                with pytest.raises(ConfigurationError, match=says):
                    await RabbitBroker(bad, clock=SystemClock()).open()
    finally:
        node.close()


def test_the_other_sides_name_is_checked() -> None:
    context = parse("amqps://h").tls

    assert context is not None
    assert context.check_hostname
    assert ssl.CERT_REQUIRED == context.verify_mode


def test_pika_is_the_client() -> None:
    """Its release is one whose insides are known to fit; a newer one is tried here before anybody has it."""
    assert (1, 3) <= tuple(int(part) for part in pika.__version__.split(".")[:2]) < (2, 0)
