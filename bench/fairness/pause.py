"""Exact pauses on an asyncio loop. `asyncio.sleep` rounds up to the next millisecond whenever the loop wakes meanwhile:
10 ms are 11 beside what a worker does, a tenth of its capacity. A timer of the kernel wakes the loop when it is time.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct

_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)
_spare: list[int] = []


async def pause(seconds: float) -> None:
    """So long, to some hundredths of a millisecond. Linux."""
    fd = _spare.pop() if _spare else _libc.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    whole = int(seconds)
    # Once, after this time: two timespecs, the first of them the interval.
    _libc.timerfd_settime(fd, 0, struct.pack("4l", 0, 0, whole, round((seconds - whole) * 1e9)), None)
    loop.add_reader(fd, over.set_result, None)
    try:
        await over
        os.read(fd, 8)
        _spare.append(fd)
    finally:
        loop.remove_reader(fd)
