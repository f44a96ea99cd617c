"""What the tests of system E share: the gateway at work against a mail server, and its outbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core.letters.letter import Letter
from redrive.runtime.clock import SystemClock
from redrive.testing.mail import SesEndpoint, SmtpServer
from tests.systems.loading import PATIENCE_S, Running, example, running

Here = Callable[..., AbstractAsyncContextManager["Gateway"]]
"""`here(**environment)`: the gateway at work on one of the brokers."""

QUEUE = "email:send"
DLQ = "email:send:dlq"
FAST = {"BASE_DELAY_MS": "1", "LIMITER_MAX": "100000"}


def on_redis(url: str, folder: Path) -> dict[str, str]:
    """The variables of a gateway on this server; in turns as soon as its broker can take turns."""
    takes_turns = BullBroker(url, clock=SystemClock()).features.fair
    return {
        "REDRIVE_BROKER": f"{url}?keep_failed=true",
        "REDRIVE_STORE": f"sqlite:///{folder}/letters.db",
        "ENABLE_ROUND_ROBIN": "true" if takes_turns else "false",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The example, its worker, and the servers it sends to."""

    system: ModuleType
    run: Running
    smtp: SmtpServer
    ses: SesEndpoint

    async def enqueue(self, *ids: str, to: tuple[str, ...] = ("a@x.example",), company: str = "acme") -> None:
        """Rows into the outbox, and from there into the queue."""
        from examples.email_gateway.relay import relay_once

        for row_id in ids:
            self.system.outbox.add(company, to, id=row_id, subject=f"mail {row_id}", text="hello")
        while await relay_once(self.system.app, self.system.outbox):
            pass

    def status(self, row_id: str) -> str:
        """Of a row of the outbox."""
        return str(self.system.outbox.get(row_id).status)

    async def sent(self, *ids: str) -> None:
        """Until these rows are marked."""
        await self.until(lambda: {self.status(row_id) for row_id in ids} == {"SENT"})

    async def until(self, condition: Callable[[], Any]) -> None:
        """Until it is true; looked at after every event and now and then."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)  # sleep: until it is looked at again

    async def until_holds(self, condition: Callable[[], Awaitable[Any]]) -> None:
        """The same for what only the store knows."""
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.01)  # sleep: until it is looked at again

    async def dead(self, count: int = 1) -> list[Letter]:
        """So many letters, once they are there."""
        await self.run.until(lambda: len(self.run.named("delivery.dead_lettered")) >= count)
        return await self.run.letters(queue=DLQ)


@asynccontextmanager
async def gateway(folder: Path, **environment: str) -> AsyncIterator[Gateway]:
    """The gateway at work, with a broker of its own in this folder unless another is named."""
    async with SmtpServer() as smtp, SesEndpoint() as ses:
        variables = {
            **FAST,
            "REDRIVE_BROKER": f"sqlite:///{folder}/gateway.db",
            "REDRIVE_ARCHIVE": str(folder / "archive"),
            "OUTBOX_FILE": str(folder / "outbox.db"),
            "SMTP_PORT": str(smtp.port),
            "SES_ENDPOINT": ses.url,
            "AWS_REGION": ses.region,
            "AWS_ACCESS_KEY_ID": ses.access_key,
            "AWS_SECRET_ACCESS_KEY": ses.secret_key,
            **environment,
        }
        with example("email_gateway", **variables) as system:
            async with running(system.app) as run:
                yield Gateway(system=system, run=run, smtp=smtp, ses=ses)
            system.outbox.close()
