"""What became of one attempt to send a mail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """`sent`: these got the mail. `refused`: what was said of those who did not. `error`: what ended the attempt before
    all was said; the refusals before it hold.
    """

    sent: tuple[str, ...] = ()
    refused: Mapping[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
