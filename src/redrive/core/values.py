"""How a value of the core is made: frozen, slotted, keyword-only.

Most values are `@dataclass(frozen=True, slots=True, kw_only=True)`. The few that are made for every single message are
`@value`: for type checkers exactly the same, at run time without the lock on assignment. A frozen dataclass sets each
field through `object.__setattr__`, which makes it two to three times as expensive to construct (measured: 2.9 against
1.2 µs for a `Message`); seven of them per message were a tenth of all the time redrive spent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A slotted, keyword-only dataclass that compares and hashes by its fields. Nobody assigns to its fields: mypy and
    pyright refuse it.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
