"""StepwiseTransaction: a store's transaction, of which the ledger is told once it has committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from redrive.core.ports import StoreTransaction, Transaction, Unsent


class StepwiseTransaction:
    """The `LedgerTransaction` of a ledger whose claims lie in a store with transactions. `committed` is called with
    what is to be sent, in the thread that left it; raising there would hide that the commit is done, so it must not.
    """

    def __init__(self, transaction: StoreTransaction, committed: Callable[[Sequence[Unsent]], None]) -> None:
        self._transaction = transaction
        self._committed = committed

    def __enter__(self) -> Transaction:
        return self._transaction.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transaction.__exit__(kind, error, traceback)
        if kind is None:
            self._committed(self._transaction.unsent)

    async def __aenter__(self) -> Transaction:
        return await self._transaction.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._transaction.__aexit__(kind, error, traceback)
        finally:
            # Also where it was cancelled meanwhile: the commit cannot be taken back.
            if kind is None and self._transaction.is_committed:
                self._committed(self._transaction.unsent)
