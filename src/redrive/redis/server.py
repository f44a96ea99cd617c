"""Server: runs scripts and commands where their keys are, and again where that is safe; the one caller of `Lane`.

One server, a master that sentinels name, or a cluster: a cluster's node says MOVED where another has the key, and that
is remembered by slot until that node is away: then whoever is asked first knows who has the key now.

Nothing is sent twice unless the caller says that it may be: a command whose answer was lost may have been carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.redis.address import Address
from redrive.redis.failures import Kind, LinkLost, Refusal, node_in, refused, unavailable
from redrive.redis.lane import Lane, find
from redrive.redis.link import Argument, Link
from redrive.redis.scripts import Script
from redrive.redis.slots import slot_of

MAX_REDIRECTIONS: Final = 5
"""So many are followed at once; further ones after a pause each."""
NODE_WAIT_MS: Final[Millis] = 1_000
"""How long one node of a cluster is waited for before the others are asked who has its keys."""
PAUSE_MS: Final[Millis] = 50
"""Between two tries where the server answers but is not ready."""


class Server:
    """What both adapters speak through. `open` once, `close` as often as you like."""

    def __init__(self, address: Address, *, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._main = Lane(address, clock=clock)
        self._nodes: dict[tuple[str, int], Lane] = {}
        self._slots: dict[int, Lane] = {}

    @property
    def where(self) -> str:
        """For messages."""
        return self.address.where

    @property
    def info(self) -> dict[str, str]:
        """What the server said of itself when the connection was made."""
        link = self._main.link
        return {} if link is None else link.info

    @property
    def is_cluster(self) -> bool:
        """Whether it is a node of a cluster."""
        return self.info.get("cluster_enabled") == "1"

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` or `BrokerUnavailableError`; nothing is left open then."""
        try:
            await self._main.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect everything."""
        for lane in (*self._nodes.values(), self._main):
            await lane.close()

    async def link(self, key: str, *, wait_ms: float) -> Link:
        """The connection to whoever has this key. Raises `RedriveError` after `wait_ms`."""
        lane = self._lane(key)
        try:
            return await lane.get(wait_ms=wait_ms)
        except RedriveError:
            self._forget(lane)
            raise

    async def new_link(self, key: str) -> Link:
        """Another connection to whoever has this key, for commands that wait. Raises `RedriveError`."""
        lane = self._lane(key)
        try:
            node = self._node_of(lane)
            return await find(self.address, node)
        except (LinkLost, Refusal, OSError) as error:
            self._forget(lane)
            raise unavailable(lane.where, str(error)) from error

    def _node_of(self, lane: Lane) -> tuple[str, int] | None:
        return next((node for node, found in self._nodes.items() if found is lane), None)

    def _lane(self, key: str) -> Lane:
        return self._slots.get(slot_of(key), self._main) if self._slots else self._main

    def _forget(self, lane: Lane) -> None:
        """Its keys may be somewhere else now."""
        if lane is not self._main:
            self._slots = {slot: known for slot, known in self._slots.items() if known is not lane}

    # ------------------------------------------------------------------------------------------------- running

    async def run(
        self, script: Script, keys: Sequence[str], args: Sequence[Argument], *, wait_ms: float, again: bool
    ) -> Any:
        """The script's reply. Waits for a connection, and for a server that is not ready, up to `wait_ms`; `again`:
        the script may be run twice, so one whose answer was lost is sent again.

        Raises `RedriveError`; `LinkLost` (the answer was lost, and `again` is False).
        """
        command = (len(keys), *keys, *args)
        return await self._call(command, key=keys[0], wait_ms=wait_ms, again=again, script=script)

    async def command(self, key: str, *command: Argument, wait_ms: float, again: bool = True) -> Any:
        """As `run`, of one command."""
        return await self._call(command, key=key, wait_ms=wait_ms, again=again)

    async def _call(
        self, command: Sequence[Argument], *, key: str, wait_ms: float, again: bool, script: Script | None = None
    ) -> Any:
        until = self._clock.monotonic_ms() + wait_ms
        moved = 0
        while True:
            left_ms = until - self._clock.monotonic_ms()
            lane = self._lane(key)
            try:
                link = await lane.get(wait_ms=left_ms if lane is self._main else min(left_ms, NODE_WAIT_MS))
            except RedriveError:
                self._forget(lane)
                if lane is self._main or left_ms <= 0:
                    raise
                continue
            try:
                # The digest anew each time: a script may have become another text.
                whole = command if script is None else ("EVALSHA", script.sha, *command)
                (reply,) = await link.send([whole])
            except LinkLost as lost:
                if (lost.was_sent and not again) or left_ms <= 0:
                    if lost.was_sent and not again:
                        raise
                    raise unavailable(lane.where, lost.text) from lost
                continue
            if not isinstance(reply, Exception):
                return reply
            moved += 1
            refusal = Refusal(str(reply))
            await self._recover(refusal, key=key, lane=lane, script=script, is_last=left_ms <= 0, moved=moved)

    async def _recover(
        self, refusal: Refusal, *, key: str, lane: Lane, script: Script | None, is_last: bool, moved: int
    ) -> None:
        """Make it so that another try can go better. Raises where none can."""
        kind = refusal.kind
        if kind is Kind.UNKNOWN_SCRIPT and script is not None:
            await self._load(script, lane=lane, is_last=is_last)
            return
        if kind is Kind.MOVED:
            self._move(key, refusal, lane)
            if moved <= MAX_REDIRECTIONS:
                return
        if kind not in (Kind.TRANSIENT, Kind.MOVED) or is_last:
            raise refused(lane.where, refusal)
        if refusal.code == "READONLY" and lane.link is not None:
            lane.link.close()
        await asyncio.sleep(PAUSE_MS / 1_000)

    async def _load(self, script: Script, *, lane: Lane, is_last: bool) -> None:
        """Tell the script to the server. Where the connection is lost over it the next try finds out."""
        loaded: Any = None
        with contextlib.suppress(LinkLost):
            (loaded,) = (None,) if lane.link is None else await lane.link.send([("SCRIPT", "LOAD", script.text)])
        if not isinstance(loaded, Exception):
            return
        refusal = Refusal(str(loaded))
        if refusal.kind is Kind.TRANSIENT and not is_last:
            await asyncio.sleep(PAUSE_MS / 1_000)
        elif refusal.kind is Kind.TRANSIENT or not script.without_flags():
            raise refused(lane.where, refusal)

    def _move(self, key: str, refusal: Refusal, lane: Lane) -> None:
        """Remember who has the slot."""
        asked = "" if lane.link is None else lane.link.where.rpartition(":")[0]
        node = node_in(refusal, asked=asked or self.address.hosts[0][0])
        if node is None:
            raise refused(lane.where, refusal)
        if node not in self._nodes:
            self._nodes[node] = Lane(self.address, clock=self._clock, node=node)
        self._slots[slot_of(key)] = self._nodes[node]
