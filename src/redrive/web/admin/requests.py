"""What may be asked: query parameters and bodies as structs. A name nobody knows is refused, never passed over."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from redrive.core.access import Role
from redrive.core.audit import WriteQuery
from redrive.core.letters.filters import MAX_FILTER_CHARS, joined, parse
from redrive.core.letters.groups import GroupState
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.policy.control import Kind
from redrive.core.redrive import MAX_REDRIVES, ItemState, JobOptions
from redrive.core.refusals import WAIVABLE
from redrive.core.units import MAX_DELAY_MS, UnixMs, parse_instant
from redrive.web.admin.problems import refuse

MAX_IDS: Final = 1_000
MAX_TEXT: Final = 1_048_576
"""Characters of a body as text; the request it comes in has no more bytes."""
MISSING: Final = msgspec.UNSET
"""Not given; null is a value."""
MAX_DEPTH: Final = 200
"""Levels of lists and objects in a body."""
MAX_PARAMETERS: Final = 100
MAX_QUERY_BYTES: Final = 16_384

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000)]
Text: TypeAlias = Annotated[str, Meta(max_length=4_000)]
Instant: TypeAlias = Annotated[str, Meta(max_length=64, description="RFC 3339 with an offset.")]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=200)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Ids: TypeAlias = Annotated[list[Name], Meta(max_length=MAX_IDS)]


class Nothing(Struct, forbid_unknown_fields=True, frozen=True):
    """No parameter at all."""


class Filters(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which letters: all conditions given hold together."""

    ids: Ids = []
    queue: Name | None = None
    state: list[ReviewState] = []
    reason: Name | None = None
    error_type: Name | None = None
    error_code: Name | None = None
    group: Name | None = None
    tenant: Name | None = None
    key: Name | None = None
    type: Name | None = None
    message_id: Name | None = None
    text: Name | None = None
    since: Instant | None = None
    until: Instant | None = None
    filter: Annotated[str, Meta(min_length=1, max_length=MAX_FILTER_CHARS)] | None = None

    def selection(self, now: UnixMs) -> Selection:
        """As the service takes it. Raises `ConfigurationError` for a time or a filter that is none."""
        found = self._plain()
        return found if self.filter is None else joined(parse(self.filter, now=now), found)

    def _plain(self) -> Selection:
        return Selection(
            ids=tuple(self.ids),
            queue=self.queue,
            states=frozenset(self.state),
            reason_code=self.reason,
            error_type=self.error_type,
            error_code=self.error_code,
            fingerprint=self.group,
            tenant=self.tenant,
            key=self.key,
            message_type=self.type,
            message_id=self.message_id,
            text=self.text,
            since=_instant(self.since, "since"),
            until=_instant(self.until, "until"),
        )


def _instant(text: str | None, field: str) -> UnixMs | None:
    return None if text is None else parse_instant(text, field=field)


class LettersQuery(Filters, frozen=True, kw_only=True):
    """One page of a list of letters."""

    limit: Limit = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class StatsQuery(Filters, frozen=True, kw_only=True):
    """Counts, and the largest groups."""

    top: Limit = 20


class GroupsQuery(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One page of a list of groups."""

    state: list[GroupState] = []
    queue: Name | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class IgnoredBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long a group is ignored."""

    until: Instant | None = None
    more: Count | None = None
    rate: Count | None = None
    per_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None


class GroupBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What becomes of a group; `assignee` "" is nobody."""

    to: GroupState | None = None
    note: Text | None = None
    assignee: Annotated[str, Meta(max_length=200)] | None = None
    ignored: IgnoredBody | None = None
    resolved_in: Name | None = None


class PageQuery(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The newest of a list."""

    limit: Limit = 50


class PeekQuery(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The first messages of a queue on the broker."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class ItemsQuery(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Items of a job, by position."""

    state: ItemState | None = None
    limit: Limit = 50
    after: Annotated[int, Meta(ge=-1, le=2**53)] = -1


class Selected(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Letters to act on. All of them only where `all` says so: an empty selection is more often a slip than a wish."""

    selection: Filters = Filters()
    all: bool = False
    note: Text = ""

    def chosen(self, now: UnixMs) -> Selection:
        """The selection. Refused where nothing is selected and `all` is not said."""
        found = self.selection.selection(now)
        if found == Selection() and not self.all:
            raise refuse("invalid", 'No letter is selected. Name some in "selection", or say "all": true.')
        return found


class ReviewBody(Selected, frozen=True, kw_only=True):
    """Move letters to a review state."""

    limit: Count | None = None


class Options(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How a job sends."""

    limit: Count | None = None
    rate_per_s: Annotated[float, Meta(ge=0.000_001, le=1_000_000)] | None = None
    keep_attempts: bool = False
    keep_ttl: bool = False
    target_queue: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    force: bool = False
    max_redrives: Annotated[int, Meta(ge=0, le=1_000_000)] = MAX_REDRIVES
    canary: Count | None = None
    canary_watch_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000
    edit: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1_000)] | None = None
    even_if: list[Literal["dedup-expired", "out-of-order"]] = []


class JobBody(Selected, frozen=True, kw_only=True):
    """Send letters back."""

    options: Options = Options()

    def job_options(self) -> JobOptions:
        """As the service takes them."""
        options = msgspec.structs.asdict(self.options)
        edit = None if self.options.edit is None else json.dumps(self.options.edit)
        even_if = tuple(each for each in WAIVABLE if each in self.options.even_if)
        return JobOptions(**{**options, "edit": edit, "even_if": even_if})


class TokenBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whose token it is, and what it may do."""

    name: Annotated[str, Meta(max_length=64)] = ""
    role: Role = Role.VIEWER


class AuditQuery(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One page of what was written."""

    actor: Name | None = None
    operation: Name | None = None
    target: Name | None = None
    since: Instant | None = None
    until: Instant | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=200)] | None = None

    def wanted(self) -> WriteQuery:
        """As the service takes it. Raises `ConfigurationError` for a time that is none."""
        return WriteQuery(
            actor=self.actor,
            operation=self.operation,
            target=self.target,
            since=_instant(self.since, "since"),
            until=_instant(self.until, "until"),
        )


class PruneBody(Selected, frozen=True, kw_only=True):
    """Remove letters for good. `older_than_ms`: only those dead for longer. `archive`: write them into the archive
    folder of this server first.
    """

    limit: Count | None = None
    older_than_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None
    archive: bool = False
    dry_run: bool = False

    def older(self, now: UnixMs) -> Selection:
        """The selection, narrowed to letters that old. Refused where nothing restricts it and `all` is not said."""
        age_ms = self.older_than_ms
        found = self.selection.selection(now) if age_ms is not None else self.chosen(now)
        if age_ms is None:
            return found
        until = now - age_ms
        return replace(found, until=until if found.until is None else min(until, found.until))


class EraseBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whose letters to erase. `headers`: each with this value as text."""

    selection: Filters = Filters()
    headers: Annotated[dict[Name, Text], Meta(max_length=20)] = {}
    dry_run: bool = False

    def person(self, now: UnixMs) -> Selection:
        """As the service takes it."""
        found = self.selection.selection(now)
        return replace(found, headers=(*found.headers, *self.headers.items()))


class ExportQuery(Filters, frozen=True, kw_only=True):
    """Letters to export."""

    limit: Count | None = None


class ImportQuery(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whether to store what comes, or only to look at it."""

    dry_run: bool = False


class RestoreBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Load an archive again."""

    dry_run: bool = False


class CollectBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """At most so many messages; `from_queue`: where those came from that do not say it."""

    limit: Count | None = None
    from_queue: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class CollectQuery(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The first messages of a dead-letter queue, as letters."""

    limit: Limit = 20
    from_queue: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class MessageBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A message: either `payload`, any JSON value, or `body`, exactly these bytes: text, or {"$bytes": base64}.
    `headers` of other kinds than JSON has: {"$time": …}, {"$bytes": …}, {"$decimal": …}.
    """

    payload: Any = MISSING
    body: Annotated[str, Meta(max_length=MAX_TEXT)] | dict[str, str] | None = None
    content_type: Name | None = None
    key: Name | None = None
    message_id: Name | None = None
    tenant: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=2_097_151)] | None = None
    headers: Annotated[dict[str, Any], Meta(max_length=1_000)] = {}
    type: Name | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] | None = None
    ttl_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] | None = None
    once: bool = False
    exchange: Annotated[str, Meta(max_length=255)] = ""


class NoteBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Why."""

    note: Text = ""


class LimitsBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Limits of a queue to change; those not named stay."""

    batch: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rates: dict[str, Annotated[str, Meta(max_length=100)]] = {}
    note: Text = ""


class AsideBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Tenants and keys of a queue; to be set aside until then, or to be let in again."""

    tenants: Ids = []
    keys: Ids = []
    until: Instant | None = None
    note: Text = ""

    def names(self) -> list[tuple[Kind, str]]:
        """As the service takes them. Refused where there is none."""
        found = [*((Kind.TENANT, name) for name in self.tenants), *((Kind.KEY, name) for name in self.keys)]
        if not found:
            raise refuse("invalid", 'Name some in "tenants" or "keys". Nothing was changed.')
        return found


class ParkedBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How many parked messages to send back."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 100


def query_of(raw: bytes, kind: type[Any]) -> Any:
    """The query string as this struct. Raises `Refused`: 400 what cannot be read, 422 what cannot be meant."""
    if len(raw) > MAX_QUERY_BYTES:
        raise refuse("malformed", f"The query string is longer than {MAX_QUERY_BYTES} bytes.")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise refuse("malformed", "The query string is not percent-encoded UTF-8, or has too many parts.") from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in _LISTS.get(kind, frozenset()):
            found.setdefault(name, []).append(value)
        elif name in found:
            raise refuse("invalid", f'Parameter "{name[:60]}" is given twice.')
        else:
            found[name] = value
    return checked(found, kind, is_text=True)


def body_of(raw: bytes, kind: type[Any]) -> Any:
    """The body as this struct; an empty one has no field. Raises `Refused`."""
    try:
        found = msgspec.json.decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError):
        raise refuse("malformed", "The body is not JSON in UTF-8. Nothing was changed.") from None
    return checked(found, kind)


def checked(value: Any, kind: type[Any], *, is_text: bool = False, allows_nul: bool = False) -> Any:
    """The value as this struct. `is_text`: numbers and truths come as text. Raises `Refused`."""
    _refuse_inside(value, allows_nul=allows_nul)
    try:
        return msgspec.convert(value, kind, strict=not is_text)
    except (msgspec.ValidationError, RecursionError) as error:
        raise refuse("invalid", f"{error}. Nothing was changed.") from None


def _refuse_inside(value: Any, *, allows_nul: bool) -> None:
    """No name has a NUL, and not every store can be asked for one. What is nested too deep could be read here, but not
    written any more by everyone after.
    """
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise refuse("invalid", f"It is nested deeper than {MAX_DEPTH} levels. Nothing was changed.")
        if not allows_nul and any(isinstance(each, str) and "\0" in each for each in level):
            raise refuse("invalid", "There is a NUL in it, which no name or text here has. Nothing was changed.")
        level, depth = [inner for each in level for inner in _inside(each)], depth + 1


def _inside(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return chain(value, value.values())
        case list():
            return value
        case _:
            return ()


_LISTS: Final[dict[type[Any], frozenset[str]]] = {
    kind: frozenset({"ids", "state"}) for kind in (Filters, LettersQuery, StatsQuery, GroupsQuery, ExportQuery)
}
"""Parameters that may be given several times."""
