"""Backend: the adapters of one app, joined behind the ports. Made by `redrive.runtime.adapters.open_backend` only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from redrive.core.audit import RequestStore
from redrive.core.letters.letter import Letter
from redrive.core.policy.control import ControlStore
from redrive.core.policy.standing import Standing
from redrive.core.ports import Broker, ClaimStore, FailedJobs, Features, GroupStore, JobStore, Ledger, LetterStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What a check of a storage file found. `problems` is empty for a sound one."""

    path: Path
    schema_version: int
    messages: int
    letters: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What stands behind one URL. `url` has its credentials masked. The ledger opens and closes the others.

    `backup`: copies everything of the file into a new one while others go on working; None where there is no file.
    `send_leftovers`: sends at most so many messages that transactions of dead processes left in the store; None where
    they lie in the broker itself. `drop_entries`: takes the entries of letters that are closed or removed out of the
    broker's own dead-letter queues; None where the letter is all there is. `controls`: what people change of queues
    while workers run; None where nothing can be. `requests`: who wrote what over the API; None where that
    is not kept. `standings`: of a fair queue, so many tenants, the longest backlog
    first; None where the broker does not know them. `local_store`: the file of this host that
    keeps claims and letters beside a broker other hosts use too. `failed`: jobs that its other workers gave up, each
    under its queue; None where dead letters lie in queues of their own.
    """

    url: str
    ledger: Ledger
    broker: Broker
    claims: ClaimStore
    letters: LetterStore
    groups: GroupStore
    jobs: JobStore
    backup: Callable[[Path], Awaitable[None]] | None = None
    send_leftovers: Callable[[int], Awaitable[int]] | None = None
    drop_entries: Callable[[Sequence[Letter]], Awaitable[None]] | None = None
    controls: ControlStore | None = None
    requests: RequestStore | None = None
    standings: Callable[[str, int], Awaitable[Sequence[Standing]]] | None = None
    local_store: str | None = None
    failed: FailedJobs | None = None

    @property
    def features(self) -> Features:
        """What the broker can do."""
        return self.ledger.features

    async def open(self) -> None:
        """Connect. Raises `BrokerUnavailableError`, `StorageCorruptError` or `SchemaTooNewError`."""
        await self.ledger.open()
        opened: list[ControlStore | RequestStore] = []
        try:
            for part in self._beside:
                await part.open()
                opened.append(part)
        except BaseException:
            for part in opened:
                await part.close()
            await self.ledger.close()
            raise

    async def close(self) -> None:
        """Give everything back; may be called twice."""
        for part in self._beside:
            await part.close()
        await self.ledger.close()

    @property
    def _beside(self) -> tuple[ControlStore | RequestStore, ...]:
        """What the ledger does not open and close."""
        return tuple(part for part in (self.controls, self.requests) if part is not None)
