"""What Dramatiq's own worker gave up on a real RabbitMQ: collected, and sent back to be worked on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import Retries

from redrive import Redrive
from redrive.core.letters.selection import Selection
from redrive.service import Service
from tests.conftest import PATIENCE
from tests.rabbit import Rabbit
from tests.rabbitmq.by_hand import Hands

pytestmark = pytest.mark.asyncio


class Actor:
    """One actor of Dramatiq, and its worker. It fails until `is_well`."""

    def __init__(self, url: str) -> None:
        self.is_well = False
        self.worked = threading.Event()
        self._broker = RabbitmqBroker(url=url, middleware=[Retries(max_retries=2, min_backoff=1, max_backoff=2)])
        self._actor = dramatiq.actor(self._charge, actor_name="charge", queue_name="orders", broker=self._broker)
        self._worker = dramatiq.Worker(self._broker, worker_threads=1, worker_timeout=50)

    def _charge(self, order: int) -> None:
        if not self.is_well:
            raise ConnectionError(f"no answer for order {order}")
        self.worked.set()

    def send(self, order: int) -> None:
        self._actor.send(order)

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        self._worker.stop()
        self._broker.close()


@pytest.fixture
def actor(rabbit: Rabbit) -> Iterator[Actor]:
    made = Actor(rabbit.url)
    yield made
    made.close()


async def test_its_letters_say_what_it_said_and_go_back(
    rabbit: Rabbit, hands: Hands, actor: Actor, tmp_path: Path
) -> None:
    actor.send(7)
    actor.start()
    hands.wait_for("orders.XQ", 1)
    app = Redrive("found", broker=rabbit.url, settings={"store": f"sqlite:///{tmp_path / 'store.db'}"})

    async with app:
        service = Service(app)
        done = await service.collect("orders.XQ")
        (summary,) = (await service.letters(Selection())).letters
        letter = (await service.letter(summary.id)).letter
        actor.is_well = True
        view = await service.redrive(Selection(), actor="ann")

    assert (1, {"orders": 1}) == (done.new, dict(done.by_queue))
    assert ("charge", "ConnectionError", 3) == (summary.message_type, letter.error_type, letter.attempt_count)
    assert "no answer for order 7" == letter.reason.text
    assert letter.first_failed_at <= letter.dead_lettered_at
    assert 1 == view.job.counts.sent
    assert actor.worked.wait(PATIENCE.total_seconds())
