"""Other processes on the file, for tests: started with `what path …`, steered by lines on stdin.

Every child prints "ready" once the file is open.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.letters.redriven import redriven_message
from redrive.core.message import Message
from redrive.core.ports import ClaimEnd, End, Forward, Outgoing
from redrive.core.redrive import JobState
from redrive.core.settlement import ACK, Reason, Retry
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger, log_sync
from redrive.stores.sqlite import SqliteClaimStore, SqliteJobStore, SqliteLetterStore

QUEUE = "orders"


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - how a child speaks to the test


def hear() -> str:
    return sys.stdin.readline().strip()


async def work(ledger: SqliteLedger, lease_ms: str) -> None:
    """Take and end for ever: effect and end in one transaction, some fail once, and tell of every effect."""
    while True:
        taken = await ledger.take(QUEUE, limit=20, lease_ms=int(lease_ms), worker="child", wait_ms=1_000, claims=True)
        failing = [each for each in taken if each.received.starts == 1 and int(each.received.message.id[2:]) % 5 == 0]
        reason = Reason(code="ONCE", text="fails the first time")
        now = time.time_ns() // 1_000_000
        await ledger.commit([End(taken=each, settlement=Retry(due_at=now + 5, reason=reason)) for each in failing])
        for each in taken:
            if each not in failing:
                async with ledger.transaction(End(taken=each, settlement=ACK)) as transaction:
                    transaction.execute("INSERT INTO effects VALUES (?)", (each.received.message.id,))


async def publish(ledger: SqliteLedger, count: str, batch: str) -> None:
    """Publish so many in batches, saying after each how many are durable."""
    for start in range(0, int(count), int(batch)):
        numbers = range(start, start + int(batch))
        await ledger.publish(
            [Outgoing(queue=QUEUE, message=Message(id=f"m-{n}", key=f"m-{n}", body=b"{}")) for n in numbers]
        )
        say(start + int(batch))


def die_instead_of_sync(count: str) -> None:
    """The disk takes so many commits; before the next one is on it this process is gone."""
    left = iter(range(int(count)))
    real = log_sync._SYNC

    def sync(handle: int) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)

    log_sync._SYNC = sync  # type: ignore[misc]


async def publish_unsynced(ledger: SqliteLedger, count: str) -> None:
    """As `publish`, one by one; killed between a commit and its sync."""
    die_instead_of_sync(count)
    await publish(ledger, "1000000", "1")


async def end_unsynced(ledger: SqliteLedger) -> None:
    """Take one message, end it, and be killed between that commit and its sync."""
    taken = await ledger.take(QUEUE, limit=1, lease_ms=60_000, worker="child", wait_ms=0, claims=True)
    say(len(taken))
    die_instead_of_sync("0")
    await ledger.commit([End(taken=each, settlement=ACK) for each in taken])


async def publish_on_command(ledger: SqliteLedger) -> None:
    """One message per line, answering with the instant before it was sent."""
    number = 0
    while hear():
        at = time.time_ns()
        await ledger.publish([Outgoing(queue=QUEUE, message=Message(id=f"m-{number}", body=b"{}"))])
        say(at)
        number += 1


async def claim(ledger: SqliteLedger, count: str) -> None:
    """On "go": so many concurrent claims of one key; prints the verdicts by name. A winner then finishes on "go"."""
    claims = SqliteClaimStore(ledger.file)
    hear()
    verdicts = [
        verdict
        for (verdict,) in await asyncio.gather(
            *(claims.claim([(QUEUE, "m-1")], lease_ms=60_000, owner=f"{n}") for n in range(int(count)))
        )
    ]
    say(",".join(type(verdict).__name__ for verdict in verdicts))
    if hear() == "finish":
        (ref,) = [verdict.ref for verdict in verdicts if isinstance(verdict, Acquired)]
        say(await claims.finish([ClaimEnd(ref=ref, state=ClaimState.PROCESSED)]))
        hear()
    again = await asyncio.gather(
        *(claims.claim([(QUEUE, "m-1")], lease_ms=60_000, owner=f"{n}") for n in range(int(count)))
    )
    say(",".join(type(verdict).__name__ for (verdict,) in again))


async def hold(ledger: SqliteLedger) -> None:
    """Take one message and keep it until killed."""
    taken = await ledger.take(QUEUE, limit=1, lease_ms=2_000, worker="frozen", wait_ms=0, claims=True)
    say(len(taken))
    hear()


async def redrive(ledger: SqliteLedger, lease_ms: str) -> None:
    """Take over the stored redrive job, as often as need be, and send its letters a few at a time."""
    jobs, letters, clock = SqliteJobStore(ledger.file), SqliteLetterStore(ledger.file), ledger.file.clock
    while (job := await jobs.acquire(None, owner="child", lease_ms=int(lease_ms))) is None:
        await asyncio.sleep(0.02)  # sleep: the dead runner holds the job until its lease ends
    while not job.is_staged:
        job = await jobs.stage(job, limit=40)
    while items := await jobs.items(job.id, state="pending", limit=5):
        batch = []
        for item in items:
            found = await letters.get(item.letter_id)
            assert found is not None
            message = redriven_message(found[0], job, now=clock.now())
            outgoing = Outgoing(queue=QUEUE, message=message)
            batch.append(Forward(item=item, outgoing=outgoing, actor="ann", at=clock.now()))
        await ledger.forward(job, batch)
        await jobs.save(job, lease_ms=int(lease_ms))
    await jobs.save(replace(job, state=JobState.DONE), lease_ms=int(lease_ms))
    say("done")
    hear()


WHAT: dict[str, Callable[..., Awaitable[None]]] = {
    "work": work,
    "publish": publish,
    "publish_unsynced": publish_unsynced,
    "end_unsynced": end_unsynced,
    "publish_on_command": publish_on_command,
    "claim": claim,
    "hold": hold,
    "redrive": redrive,
}


async def main(what: str, path: str, *arguments: str) -> None:
    file = SqliteFile(path, clock=SystemClock(), lock_timeout_ms=30_000)
    ledger = SqliteLedger(file)
    await ledger.open()
    say("ready")
    await WHAT[what](ledger, *arguments)
    await ledger.close()


asyncio.run(main(*sys.argv[1:]))
