"""Which letters a selection takes: as a question for the server, and of letters that are read already."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Place, Selection
from redrive.core.units import UnixMs
from redrive.stores.mongodb.letter_documents import id_in, text_in
from redrive.stores.mongodb.link import Document

_EQUAL: Final = (
    "reason_code",
    "error_type",
    "error_code",
    "fingerprint",
    "tenant",
    "key",
    "message_type",
    "message_id",
)


def query_of(selection: Selection, after: Place | None, up_to: int | None) -> Document:
    """What the server can tell; text and headers are sifted here."""
    all_of: list[Any] = []
    for name in _EQUAL:
        value = getattr(selection, name)
        if value is not None:
            all_of.append({f"redrive.{name}": text_in(value)})
    if selection.ids:
        all_of.append({"_id": {"$in": [id_in(each) for each in selection.ids]}})
    if selection.queue is not None:
        kept = text_in(selection.queue)
        all_of.append({"$or": [{"redrive.queue": kept}, {"redrive.dead_letter_queue": kept}]})
    if selection.states:
        all_of.append({"reviewState": {"$in": sorted(str(state) for state in selection.states)}})
    if selection.since is not None:
        all_of.append({"redrive.dead_lettered_at": {"$gte": selection.since}})
    if selection.until is not None:
        all_of.append({"redrive.dead_lettered_at": {"$lt": selection.until}})
    if up_to is not None:
        all_of.append({"redrive.number": {"$lte": up_to}})
    if after is not None:
        died_at, number = after
        later = {"redrive.dead_lettered_at": died_at, "redrive.number": {"$gt": number}}
        all_of.append({"$or": [{"redrive.dead_lettered_at": {"$gt": died_at}}, later]})
    return {"$and": all_of} if all_of else {}


def listed_in(
    listed: Sequence[Document], selection: Selection, *, after: Place | None, up_to: int | None
) -> list[Document]:
    """Of letters in order of death those that this selection takes, text and headers aside."""
    first = 0 if after is None else bisect_right(listed, after, key=place_in)
    if selection.since is not None:
        first = max(first, bisect_left(listed, (selection.since, 0), key=place_in))
    last = len(listed) if selection.until is None else bisect_left(listed, (selection.until, 0), key=place_in)
    equal = [(name, text_in(value)) for name in _EQUAL if (value := getattr(selection, name)) is not None]
    ids = {id_in(each) for each in selection.ids}
    queue = None if selection.queue is None else text_in(selection.queue)
    states = {str(state) for state in selection.states}
    found = []
    for each in listed[first:last]:
        own = each["redrive"]
        if (
            (not states or each["reviewState"] in states)
            and (queue is None or queue in (own["queue"], own["dead_letter_queue"]))
            and all(own[name] == value for name, value in equal)
            and (not ids or each["_id"] in ids)
            and (up_to is None or own["number"] <= up_to)
        ):
            found.append(each)
    return found


def is_expired(document: Document, now: UnixMs) -> bool:
    """Whether its time is over, and nobody has to decide about it any more."""
    expires_at = document["redrive"]["expires_at"]
    return expires_at is not None and expires_at <= now and ReviewState(document["reviewState"]) not in OPEN_STATES


def is_sifted(selection: Selection) -> bool:
    """Whether the server cannot tell: the letters are looked at here."""
    return selection.text is not None or bool(selection.headers)


def place_in(document: Document) -> Place:
    """Its place in the order of death."""
    return document["redrive"]["dead_lettered_at"], document["redrive"]["number"]
