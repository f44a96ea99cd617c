"""What is answered, as schemas: the shapes of `redrive.views`, which makes the documents; a test compares them.

A field may be added in a later version; none changes its meaning or goes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

Json: TypeAlias = dict[str, Any]


class Problem(Struct, kw_only=True):
    """RFC 9457: why a request was refused."""

    type: str
    title: str
    status: int
    detail: str


class Me(Struct, kw_only=True):
    """Who asks, as the audit trail will name them."""

    name: str
    role: str
    app: str


class LetterSummary(Struct, kw_only=True):
    """A dead letter as a list shows it."""

    id: str
    queue: str
    dead_letter_queue: str
    state: str
    reason_code: str
    reason_text: str
    error_type: str | None
    error_code: str | None
    attempt_count: int
    message_id: str
    key: str | None
    tenant: str | None
    message_type: str | None
    group: str
    group_title: str
    first_failed_at: str
    dead_lettered_at: str
    expires_at: str | None
    redrive_count: int
    previous: str | None
    outstanding_job: str | None
    body_bytes: int
    version: str | None


class LetterPage(Struct, kw_only=True):
    """Letters, oldest first; `cursor` gets the next page, null at the end."""

    letters: list[LetterSummary]
    cursor: str | None


class Message(Struct, kw_only=True):
    """A message. `body` is text, or {"$bytes": base64}, or null where it is over the limit of one answer."""

    id: str
    key: str | None
    tenant: str | None
    priority: int | None
    content_type: str | None
    published_at: str | None
    expires_at: str | None
    headers: Json | str
    properties: Json
    body_bytes: int
    body: Any
    is_body_left_out: bool
    is_redacted: bool


class LetterDetail(Struct, kw_only=True):
    """One dead letter with its message, history and audit trail."""

    id: str
    system: str
    queue: str
    dead_letter_queue: str
    state: str
    reason_code: str
    reason_text: str
    error_type: str | None
    error_code: str | None
    attempt_count: int
    group: str
    group_title: str
    first_failed_at: str
    dead_lettered_at: str
    expires_at: str | None
    redrive_count: int
    previous: str | None
    outstanding_job: str | None
    version: str | None
    message: Message
    history: list[Json]
    audit: list[Json]


class Stats(Struct, kw_only=True):
    """Counts; every mapping has its largest entry first. `is_at_least`: not all letters were looked at, and what is
    counted are the oldest of them; `last_hour_is_at_least`: the same of those that died within the last hour.
    """

    total: int
    is_at_least: bool
    last_hour: int
    last_hour_is_at_least: bool
    by_state: dict[str, int]
    by_queue: dict[str, int]
    by_reason: dict[str, int]
    by_tenant: dict[str, int]
    oldest_at: str | None
    groups: list[Json]


class Group(Struct, kw_only=True):
    """One problem, and what people made of it."""

    group: str
    title: str
    state: str
    queue: str
    reason_code: str
    error_type: str | None
    error_code: str | None
    letters: int
    waiting: int
    seen: int
    first_seen: str
    last_seen: str
    redriven: int
    succeeded: int
    returned: int
    success_rate: float | None
    tenants: int
    top_tenants: dict[str, int]
    versions: dict[str, int]
    note: str
    assignee: str | None
    ignored: Json | None
    resolved_in: str | None
    changed_at: str | None
    changed_by: str | None


class GroupDetail(Group, kw_only=True):
    """... with its deaths by the hour and its audit trail."""

    hours: list[Json]
    audit: list[Json]


class GroupPage(Struct, kw_only=True):
    """Groups, those with the most waiting letters first; `cursor` gets the next page, null at the end."""

    groups: list[Group]
    cursor: str | None


class Plan(Struct, kw_only=True):
    """What a redrive would do now; nothing was changed."""

    dry_run: bool
    send: int
    skip: int
    queues: list[Json]
    letters: list[str]
    skipped: list[Json]
    refusals: dict[str, int]
    missing: list[str]
    takes_ms: int | None
    edits: list[Json]


class Job(Struct, kw_only=True):
    """A redrive job."""

    id: str
    state: str
    error: str | None
    actor: str
    note: str
    selected: int
    pending: int
    sent: int
    skipped: int
    is_staged: bool
    selection: Json
    options: Json
    created_at: str
    updated_at: str
    runner: str | None


class JobDetail(Struct, kw_only=True):
    """A redrive job, why letters were skipped, the ids nobody knows, and what came back."""

    job: Job
    skipped: list[Json]
    refusals: dict[str, int]
    missing: list[str]
    came_back: Json | None
    outcomes: Json


class JobList(Struct, kw_only=True):
    """Redrive jobs, newest first."""

    jobs: list[Job]


class Item(Struct, kw_only=True):
    """One letter of a job."""

    position: int
    letter_id: str
    state: str
    code: str | None
    why: str | None


class ItemPage(Struct, kw_only=True):
    """Items by position; `after` gets the next page, null at the end."""

    items: list[Item]
    after: int | None


class Review(Struct, kw_only=True):
    """What a review changed. Letters that were there already count as neither."""

    to: str
    changed: int
    refused: int
    refusals: list[Json]
    missing: list[str]


class Queue(Struct, kw_only=True):
    """One queue."""

    queue: str
    ready: int
    scheduled: int
    leased: int
    dead: int
    oldest_ready_at: str | None
    is_consumed: bool
    paused: Json | None
    quarantined: int


class QueueList(Struct, kw_only=True):
    """Queues by name."""

    queues: list[Queue]


class Tenants(Struct, kw_only=True):
    """The tenants of a fair queue."""

    queue: str
    tenants: list[Json]
    starved: list[str]
    monopolising: list[str]


class Limits(Struct, kw_only=True):
    """What a person has changed of a queue: limits, a pause, what is set aside; null: as the consumer says."""

    queue: str
    batch: int | None
    rates: dict[str, str]
    paused: Json | None
    quarantined: list[Json]
    changed_at: str | None
    actor: str
    note: str


class LimitsList(Struct, kw_only=True):
    """What people have changed, by queue."""

    limits: list[Limits]


class Sent(Struct, kw_only=True):
    """What became of a message. `duplicates` and `conflicts` enqueued nothing."""

    queue: str
    published: int
    duplicates: int
    conflicts: int
    message_id: str


class Pruned(Struct, kw_only=True):
    """What a prune removed, or would. `spared`: letters that stay because nobody has decided about them. `archive`: the
    file they are in now.
    """

    dry_run: bool
    letters: int
    removed: int | None
    spared: int
    archive: str | None


class Erased(Struct, kw_only=True):
    """What was erased, or would be: of the store, and of so many files. `held`: those that stay because a redrive job
    holds them. `unreadable`: lines of archives that are no letter; they stay. `claims`: their idempotency keys that go;
    `claims_kept`: those that stay until their time is over.
    """

    dry_run: bool
    letters: int
    archived: int
    files: int
    held: int
    unreadable: int
    claims: int
    claims_kept: int


class RefusedLine(Struct, kw_only=True):
    """A line whose letter the store cannot hold."""

    line: int
    id: str
    why: str


class Loaded(Struct, kw_only=True):
    """How many letters came, how many the store did not have yet, how many it cannot hold, and the first of those."""

    dry_run: bool
    letters: int
    added: int
    refused: int
    refusals: list[RefusedLine]


class Restored(Loaded, kw_only=True):
    """... `unreadable`: lines of the archive that are no letter."""

    unreadable: int


class Archive(Struct, kw_only=True):
    """One file of letters."""

    file: str
    letters: int
    bytes: int
    oldest_at: str | None
    newest_at: str | None
    unreadable: int


class ArchiveList(Struct, kw_only=True):
    """The archives of this server, by name."""

    archives: list[Archive]


class Collectable(Struct, kw_only=True):
    """What the first messages of a dead-letter queue would become, and how many would be left there, by why."""

    left: dict[str, int]
    letters: list[Json]


class Pass(Struct, kw_only=True):
    """A pass over a dead-letter queue: running, done, failed or stopped; what it took, and where from; how many it left
    there, by why.
    """

    queue: str
    state: str
    actor: str
    started_at: str
    ended_at: str | None
    taken: int
    new: int
    left: dict[str, int]
    by_queue: dict[str, int]
    by_group: dict[str, int]
    error: str | None


class Token(Struct, kw_only=True):
    """A token as it is kept."""

    name: str
    role: str
    created_at: str | None


class TokenList(Struct, kw_only=True):
    """Who may come."""

    tokens: list[Token]


class NewToken(Struct, kw_only=True):
    """A token that was just made; nobody can read it again."""

    name: str
    role: str
    token: str


class Revoked(Struct, kw_only=True):
    """Whose token is no more."""

    revoked: str


class Write(Struct, kw_only=True):
    """One write over this API. `status` null: it was cut off, and may be done or not. `result`: what was counted, or
    the code of a refusal.
    """

    id: str
    at: str
    actor: str
    role: str
    operation: str
    target: str
    address: str
    status: int | None
    result: str


class WritePage(Struct, kw_only=True):
    """Writes, newest first; `cursor` gets the next page, null at the end."""

    writes: list[Write]
    cursor: str | None


class Parked(Struct, kw_only=True):
    """A queue of parked messages on the broker."""

    queue: str
    depth: int
    consumers: int
    type: str | None
    delivery_limit: int | None
    delivery_limit_known: bool
    oldest_at: str | None
    note: str


class ParkedMessages(Parked, kw_only=True):
    """... and the first of them; nothing is taken."""

    messages: list[Json]


class SentBack(Struct, kw_only=True):
    """What a redrive in place did."""

    queue: str
    batch: str | None
    resumed: bool
    requested: int
    moved: int
    already_sent: int
    failed: int
    targets: Json
    stayed: list[Json]
    error: str | None
