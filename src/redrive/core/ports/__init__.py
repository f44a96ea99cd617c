"""The ports: what the runtime asks of brokers, stores and the clock. These docstrings are the contract.

Rules for every port:
- Batches in, one answer per element out, in the same order. An empty batch returns [] without I/O.
- A failure of the whole call raises a `RedriveError` and means: nothing of this batch is known to have happened;
  repeating it is safe (ids make it idempotent).
- What moves a delivery names a lease or claim with its fencing token; a stale token changes nothing and is
  reported as such, never raised.
- `renew` is a plain blocking function and thread-safe: the lease thread calls it while the loop may be blocked.
- What an adapter cannot do is a field of its `Features`, never a NotImplementedError.
- `open` may be called once; `close` twice. Methods may be called from one event loop at a time.

A `Ledger` makes whole decisions durable: it joins broker, claims, letters and jobs. An adapter whose parts share
one transactional store (the embedded file) brings its own, where each call is one transaction. For all others
`redrive.runtime.ledger.OrderedLedger` carries a decision out step by step, in an order in which a crash leaves a
duplicate, never a hole. The pipeline knows only the ledger.
"""

from __future__ import annotations

from redrive.core.ports.broker import Broker, Clock, Depth, Features, Lease, Outgoing, Published, Received, Settle
from redrive.core.ports.claims import (
    ClaimEnd,
    ClaimStore,
    Registration,
    StoreTransaction,
    TransactionalClaimStore,
    Unsent,
)
from redrive.core.ports.failed import FailedJob, FailedJobs, FailedPage, Taking
from redrive.core.ports.jobs import Items, Jobs, JobStore
from redrive.core.ports.ledger import End, Forward, Ledger, LedgerTransaction, Taken, Transaction
from redrive.core.ports.letters import (
    AuditEntry,
    GroupPage,
    GroupStore,
    HourCount,
    LetterStats,
    LetterStore,
    LetterSummary,
    Page,
    ReviewChange,
)

__all__ = [
    "AuditEntry",
    "Broker",
    "ClaimEnd",
    "ClaimStore",
    "Clock",
    "Depth",
    "End",
    "FailedJob",
    "FailedJobs",
    "FailedPage",
    "Features",
    "Forward",
    "GroupPage",
    "GroupStore",
    "HourCount",
    "Items",
    "JobStore",
    "Jobs",
    "Lease",
    "Ledger",
    "LedgerTransaction",
    "LetterStats",
    "LetterStore",
    "LetterSummary",
    "Outgoing",
    "Page",
    "Published",
    "Received",
    "Registration",
    "ReviewChange",
    "Settle",
    "StoreTransaction",
    "Taken",
    "Taking",
    "Transaction",
    "TransactionalClaimStore",
    "Unsent",
]
