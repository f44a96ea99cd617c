"""What people do to queues while workers run: pause and resume them, set tenants and keys aside, change limits.

Kept in the control store (`redrive.core.policy.control`); every worker follows within two seconds, and one that starts
later begins with it. A call returns once it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.policy.control import (
    QUARANTINED,
    Control,
    ControlStore,
    Kind,
    Pause,
    Quarantine,
    merged,
    released,
    with_quarantined,
    without_limits,
)
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError, NotFoundError, UnsupportedError
from redrive.service.operations import Operations
from redrive.service.values import Aside, Name, Released


class ControlOperations(Operations):
    """On queues, while their workers run."""

    async def controls(self) -> tuple[Control, ...]:
        """What people have changed of queues, by queue."""
        return tuple(await self._controls.list())

    async def set_limits(
        self, queue: str, *, batch: int | None, rates: Mapping[str, str], actor: str, note: str = ""
    ) -> Control:
        """Change these limits of a queue and leave the others. Raises `ConfigurationError` for one that cannot be."""
        changed = merged(await self.control(queue), batch=batch, rates=rates)
        return await self._put_limits(changed, actor=actor, note=note)

    async def reset_limits(self, queue: str, *, actor: str, note: str = "") -> Control:
        """Let the consumer's own limits hold again; a pause and what is set aside stay."""
        return await self._put_limits(without_limits(await self.control(queue)), actor=actor, note=note)

    async def _put_limits(self, control: Control, *, actor: str, note: str) -> Control:
        kept = await self._put(control, actor=actor, note=note)
        rates = dict(kept.rates)
        self._app.events.emit(
            "queue.limits_set", queue=kept.queue, batch=kept.batch, rates=rates, actor=actor, note=note
        )
        return kept

    async def control(self, queue: str) -> Control:
        """What holds for this queue; an empty one where nobody changed anything."""
        known = {control.queue: control for control in await self.controls()}
        return known.get(queue, Control(queue=queue))

    async def pause_queue(self, queue: str, *, actor: str, note: str = "") -> Control:
        """Let nobody take messages of this queue; what is in hand ends. One that is paused already stays as it is.

        Raises `NotFoundError` for a queue nobody knows: a pause of a name that is misspelt would pause nothing.
        """
        await self._refuse_unknown(queue)
        known = await self.control(queue)
        if known.paused is not None:
            return known
        paused = replace(known, paused=Pause(at=self._app.clock.now(), actor=actor, note=note))
        kept = await self._put(paused, actor=actor, note=note)
        self._app.events.emit("queue.pause_set", queue=queue, is_paused=True, actor=actor, note=note)
        return kept

    async def resume_queue(self, queue: str, *, actor: str, note: str = "") -> Control:
        """Let workers take messages of this queue again."""
        known = await self.control(queue)
        if known.paused is None:
            await self._refuse_unknown(queue)
            return known
        kept = await self._put(replace(known, paused=None), actor=actor, note=note)
        self._app.events.emit("queue.pause_set", queue=queue, is_paused=False, actor=actor, note=note)
        return kept

    async def quarantine(
        self, queue: str, names: Sequence[Name], *, until: UnixMs | None = None, actor: str, note: str = ""
    ) -> Control:
        """Set the messages of these aside from now on: each becomes a dead letter QUARANTINED at its next start.

        Raises `NotFoundError` for a queue nobody knows, `ConfigurationError` for an end that is past or too many names.
        """
        now = self._app.clock.now()
        if until is not None and until <= now:
            raise ConfigurationError("The quarantine would be over already. Nothing was changed.")
        await self._refuse_unknown(queue)
        more = [
            Quarantine(kind=kind, name=name, until=until, at=now, actor=actor, note=note)
            for kind, name in dict.fromkeys(names)
        ]
        changed = with_quarantined(await self.control(queue), more, now=now)
        kept = await self._put(changed, actor=actor, note=note)
        self._tell(queue, names, is_released=False, until=until, who=(actor, note))
        return kept

    async def release(self, queue: str, names: Sequence[Name], *, actor: str, note: str = "") -> Released:
        """Handle messages of these again; without names, of all that are set aside. What lies aside already stays there
        until a person redrives it.

        Raises `NotFoundError` for one that is not set aside.
        """
        known = await self.control(queue)
        there = [(each.kind, each.name) for each in known.quarantined]
        for kind, name in names:
            if (kind, name) not in there:
                raise NotFoundError(
                    f'The {kind} "{name}" is not set aside in "{queue}". Nothing was changed.',
                    hint=f"See: redrive queues quarantine {queue}",
                )
        gone = list(dict.fromkeys(names)) if names else there
        now = self._app.clock.now()
        kept = await self._put(released(known, gone, now=now), actor=actor, note=note)
        self._tell(queue, gone, is_released=True, until=None, who=(actor, note))
        return Released(control=kept, asides=tuple([await self._aside(queue, each) for each in gone]))

    async def _aside(self, queue: str, name: Name) -> Aside:
        kind, text = name
        consumer = self._app.consumers.get(queue)
        code = QUARANTINED if consumer is None else consumer.codes.get(QUARANTINED, QUARANTINED)
        selection = Selection(queue=queue, reason_code=code, states=OPEN_STATES)
        selection = replace(selection, tenant=text) if kind is Kind.TENANT else replace(selection, key=text)
        count = (await self._app.backend.letters.stats(selection, top=1)).total
        return Aside(kind=kind, name=text, letters=count, selection=selection)

    async def _put(self, control: Control, *, actor: str, note: str) -> Control:
        kept = replace(control, actor=actor, note=note, changed_at=self._app.clock.now())
        await self._controls.put(kept)
        return kept

    def _tell(
        self, queue: str, names: Sequence[Name], *, is_released: bool, until: UnixMs | None, who: tuple[str, str]
    ) -> None:
        self._app.events.emit(
            "queue.quarantine_set",
            queue=queue,
            tenants=[name for kind, name in names if kind is Kind.TENANT],
            keys=[name for kind, name in names if kind is Kind.KEY],
            is_released=is_released,
            until=until,
            actor=who[0],
            note=who[1],
        )

    async def _refuse_unknown(self, queue: str) -> None:
        app = self._app
        if queue in app.consumers or queue in {depth.queue for depth in await app.backend.broker.depths([queue])}:
            return
        raise NotFoundError(f'There is no queue "{queue}". Nothing was changed.', hint="See: redrive queues list")

    @property
    def _controls(self) -> ControlStore:
        store = self._app.backend.controls
        if store is None:
            raise UnsupportedError(f'Queues of "{self._app.backend.url}" cannot be changed while workers run.')
        return store
