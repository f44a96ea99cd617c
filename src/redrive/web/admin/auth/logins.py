"""How often one address may come with a bad token.

After `MAX_FAILURES` within `WINDOW_MS` its tokens are not looked at until the oldest of them is `WINDOW_MS` ago. One
that was good from there lately still is: behind one proxy sit many, and one of them must not lock the others out. No
guess gets better by it: a token that was never good is not looked at.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict, deque
from typing import Final

from redrive.core.units import Millis

WINDOW_MS: Final[Millis] = 60_000
MAX_FAILURES: Final = 10
GOOD_FOR_MS: Final[Millis] = 3_600_000
MAX_ADDRESSES: Final = 10_000
"""Remembered; with more the oldest are forgotten."""


class Logins:
    """Failures by address, in this process."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._good: OrderedDict[tuple[str, str], float] = OrderedDict()

    def wait_s(self, address: str, token_hash: str, *, now_ms: float) -> int | None:
        """None where the token may be looked at, else how long to wait."""
        failures = self._failures.get(_lane(address))
        if failures is None:
            return None
        while failures and now_ms - failures[0] >= WINDOW_MS:
            failures.popleft()
        if len(failures) < MAX_FAILURES:
            return None
        good_at = self._good.get((_lane(address), token_hash))
        if good_at is not None and now_ms - good_at < GOOD_FOR_MS:
            return None
        return max(1, math.ceil((failures[0] + WINDOW_MS - now_ms) / 1_000))

    def failed(self, address: str, token_hash: str, *, now_ms: float) -> None:
        """A token was not good."""
        lane = _lane(address)
        self._good.pop((lane, token_hash), None)
        self._failures.setdefault(lane, deque(maxlen=MAX_FAILURES)).append(now_ms)
        self._failures.move_to_end(lane)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, token_hash: str, *, now_ms: float) -> None:
        """A token was good."""
        name = (_lane(address), token_hash)
        self._good[name] = now_ms
        self._good.move_to_end(name)
        if len(self._good) > MAX_ADDRESSES:
            self._good.popitem(last=False)


def _lane(address: str) -> str:
    """One person's addresses: of IPv6 a whole /64."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:  # noqa: PLR2004 - the protocol's number
        return str(found)
    return str(ipaddress.ip_network((found, 64), strict=False))
