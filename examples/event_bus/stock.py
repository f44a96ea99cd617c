"""The stock ledger of `wms-cincout`: what came in, what went out, and what is on hand."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, on_hand INTEGER NOT NULL CHECK (on_hand >= 0))",
    "CREATE TABLE IF NOT EXISTS movements (event_id TEXT PRIMARY KEY, sku TEXT, kind TEXT, quantity INTEGER)",
)


class Movement(msgspec.Struct, kw_only=True, frozen=True):
    """Goods checked in or out."""

    sku: str
    kind: Literal["check-in", "check-out"]
    quantity: int


class Refused(Exception):
    """The ledger does not take this movement now. `status_code` says why, as an HTTP service would."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(text)
        self.status_code = status_code


def book_movement(tx: Any, movement: Movement, *, event_id: str) -> None:
    """Book it within the delivery's own transaction: once, whatever is killed when.

    Raises `Refused`: 409 where less is on hand than goes out (the check-in may still be on its way), 422 for a
    quantity that is none.
    """
    if movement.quantity < 1:
        raise Refused(422, f"quantity is {movement.quantity}")
    for statement in SCHEMA:
        tx.execute(statement)
    row = tx.execute("SELECT on_hand FROM stock WHERE sku = ?", (movement.sku,)).fetchone()
    on_hand = 0 if row is None else row[0]
    change = movement.quantity if movement.kind == "check-in" else -movement.quantity
    if on_hand + change < 0:
        raise Refused(409, f"{on_hand} of {movement.sku} on hand, {movement.quantity} go out")
    tx.execute("INSERT INTO movements VALUES (?, ?, ?, ?)", (event_id, movement.sku, movement.kind, movement.quantity))
    tx.execute(
        "INSERT INTO stock VALUES (?, ?) ON CONFLICT (sku) DO UPDATE SET on_hand = excluded.on_hand",
        (movement.sku, on_hand + change),
    )
