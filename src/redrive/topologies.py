"""Everything a person can do with a topology: show, verify, plan, apply, export. Surfaces only translate to this.

A topology comes from an app, a definitions file or a broker; what is done with it is the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redrive.core.live import LiveBroker, There
from redrive.core.topology import plan as plans
from redrive.core.topology.bundle import bundle_of, with_bundles
from redrive.core.topology.definitions import export_definitions, parse_definitions
from redrive.core.topology.fit import for_version, in_vhost
from redrive.core.topology.ladder import has_ladder, ladder
from redrive.core.topology.migration import Migration, migrations
from redrive.core.topology.model import EMPTY, Topology
from redrive.core.topology.plan import Mark, Needs, Plan, Step
from redrive.core.topology.recipes import safe_queue
from redrive.core.topology.show import mermaid, rows
from redrive.core.topology.verify import REDRIVE, UNKNOWN, Client, Report, Suppression, verify
from redrive.core.topology.wiring import LadderRetry
from redrive.errors import ConfigurationError, UnsupportedError
from redrive.runtime.adapters import open_live
from redrive.runtime.app import Redrive
from redrive.runtime.clock import SystemClock

SCHEMES = ("amqp://", "amqps://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How a broker is reached. `management`: URL of its management API, None for the usual one; `is_alone`: it is not
    asked at all; `journal`: file in which moved messages are remembered, None for the user's own.
    """

    url: str = field(repr=False)
    management: str | None = field(default=None, repr=False)
    is_alone: bool = False
    journal: Path | None = None


@asynccontextmanager
async def reached(reach: Reach) -> AsyncIterator[LiveBroker]:
    """The broker, open. Raises `UnsupportedError` where the URL is none of a broker with a topology."""
    live = open_live(
        reach.url,
        clock=SystemClock(),
        management=reach.management,
        without_management=reach.is_alone,
        journal=reach.journal,
    )
    try:
        await live.open()
        yield live
    finally:
        await live.close()


# ---------------------------------------------------------------------------------------------------- where from


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A topology and what is known about it. `client`: how those behave who use it. `broker`: of the app it is from."""

    name: str
    topology: Topology
    client: Client = UNKNOWN
    consumers: tuple[str, ...] | None = None
    broker: str | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()


def of_app(app: Redrive) -> Source:
    """What the app wants: its topology, and the default shape for consumers of which that says nothing.

    Raises `UnsupportedError` where the app has neither a topology nor a broker with one.
    """
    has_broker = app.settings.broker.startswith(SCHEMES)
    if not has_broker and app.topology == EMPTY:
        raise UnsupportedError(
            f'The app "{app.name}" has no topology: its broker is no RabbitMQ and it names none.',
            hint="Give it one: Redrive(…, topology=…).",
        )
    wired = app.wired_topology()
    declared = {queue.name for queue in wired.queues}
    for wiring in wired.wirings:
        if wiring.queue not in declared:
            shape = safe_queue(wiring.queue, wiring.dead_letter_queue)
            wired += replace(shape, wirings=())
    fair = [queue for queue, consumer in app.consumers.items() if consumer.fair is not None] if has_broker else []
    return Source(
        name=app.name,
        topology=with_bundles(wired, fair),
        client=REDRIVE,
        # Who sorts a fair queue reads the other queues of its bundle.
        consumers=(
            *(wiring.queue for wiring in wired.wirings),
            *(name for queue in fair for name in bundle_of(queue).inner),
        ),
        broker=app.settings.broker if has_broker else None,
    )


def of_file(path: Path) -> Source:
    """From a definitions file. Raises `ConfigurationError` where it is none."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f'"{path}" cannot be read ({error.strerror}).') from None
    return Source(name=path.name, topology=parse_definitions(text).topology)


async def of_broker(reach: Reach) -> Source:
    """What is on a broker, in the virtual host of its URL.

    Raises `UnsupportedError` where it cannot be asked for everything: AMQP alone lists nothing.
    """
    async with reached(reach) as live:
        there = await live.there()
        if not there.is_complete:
            raise UnsupportedError(
                f"What is on {live.place} cannot be listed without its management API.",
                hint="Enable it (rabbitmq-plugins enable rabbitmq_management) or name it with --management URL.",
            )
        return Source(name=live.place, topology=there.topology)


# ---------------------------------------------------------------------------------------------------- show, verify


def shown(source: Source) -> list[dict[str, str]]:
    """Rows of the table, as plain values."""
    return [
        {"kind": row.kind, "name": row.name, "what": row.what, "to": row.to, "settings": row.settings}
        for row in rows(source.topology)
    ]


def picture(source: Source) -> str:
    """As Mermaid text."""
    return mermaid(source.topology)


def checked(
    source: Source,
    *,
    version: str | None = None,
    consumers: Iterable[str] = (),
    suppress: Iterable[Suppression] = (),
    current: Topology | None = None,
) -> Report:
    """Every way in which messages are lost, late, doubled or stuck. See `redrive.core.topology.verify`."""
    topology = source.topology
    if any(isinstance(wiring.retry, LadderRetry) for wiring in topology.wirings) and not has_ladder(topology):
        # The adapter makes its levels when they are needed.
        topology += ladder()
    named = tuple(consumers) or source.consumers
    return verify(
        topology,
        version=version,
        consumers=named,
        client=source.client,
        suppress=tuple(suppress),
        current=current,
    )


def exported(source: Source, *, version: str | None = None, names_vhost: bool = True) -> str:
    """The text of a definitions file: the same for the same topology, byte by byte.

    `version` of the broker it is for: what a queue must be told there so that its delivery limit stays off.
    """
    topology = source.topology
    fitted = for_version(topology, version or topology.version) if topology.wirings else topology
    return export_definitions(replace(fitted, version=None), names_vhost=names_vhost)


# ---------------------------------------------------------------------------------------------------- plan, apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What there is to do on a broker. `migrations`: the way of each queue that is there with other arguments."""

    place: str
    want: Topology
    there: There
    plan: Plan
    migrations: tuple[Migration, ...]

    @property
    def refused(self) -> tuple[Step, ...]:
        """What keeps `apply` from starting: there with other settings, which nobody forces."""
        return tuple(step for step in self.plan.drift if step.mark is Mark.CHANGE)

    @property
    def for_a_person(self) -> tuple[Step, ...]:
        """Of the refused, what no migration changes either."""
        return tuple(step for step in self.refused if step.needs is Needs.PERSON)

    @property
    def unfinished(self) -> tuple[Step, ...]:
        """Holding queues of a migration that was interrupted."""
        return tuple(step for step in self.plan.extras if step.needs is Needs.MIGRATION)

    @property
    def is_clean(self) -> bool:
        """Everything wanted is there, as wanted."""
        return not (self.plan.changes or self.refused or self.unfinished)


async def planned(live: LiveBroker, source: Source) -> Planned:
    """Compare what is wanted with what is on the broker, in its virtual host. Changes nothing."""
    want = _placed(source.topology, live.vhost)
    there = await live.there(want)
    found = plans.plan(want, there.topology, default_types=there.default_types)
    return Planned(
        place=live.place,
        want=want,
        there=there,
        plan=found,
        migrations=migrations(want, there.topology, default_types=there.default_types) if there.is_complete else (),
    )


def _placed(topology: Topology, vhost: str) -> Topology:
    """In the virtual host of the broker: a topology of one goes there whole, of one of several its own part."""
    named = {each.vhost for each in topology.queues} | {each.vhost for each in topology.exchanges}
    if len(named) <= 1:
        return in_vhost(topology, vhost)
    if vhost not in named:
        raise ConfigurationError(
            f'The topology is of the virtual hosts {", ".join(sorted(named))}, the URL names "{vhost}".',
            hint="Name one of them at the end of the URL.",
        )
    return replace(
        topology,
        exchanges=tuple(each for each in topology.exchanges if each.vhost == vhost),
        queues=tuple(each for each in topology.queues if each.vhost == vhost),
        bindings=tuple(each for each in topology.bindings if each.vhost == vhost),
        policies=tuple(each for each in topology.policies if each.vhost == vhost),
        operator_policies=tuple(each for each in topology.operator_policies if each.vhost == vhost),
    )


async def applied(live: LiveBroker, source: Source, *, migrate: bool, said: Callable[[str], None]) -> Planned:
    """Declare what is missing, and compare again: what is left of the plan afterwards. Never forces anything.

    Where something is there with other settings nothing at all is declared, unless `migrate`: then such queues are
    replaced by ones as wanted, with all their messages. Killed in here: run it again, it goes on from what is there.

    Raises `ConfigurationError` naming what is in the way. Nothing was changed then.
    """
    before = await planned(live, source)
    in_the_way = before.for_a_person if migrate else before.refused
    if in_the_way:
        raise ConfigurationError(refusal_text(in_the_way), hint=_hint(in_the_way, migrate=migrate))
    if migrate and not before.there.is_complete:
        raise UnsupportedError(
            "Without the management API bindings are not known, and a migration must move them. Nothing was changed.",
            hint="Name it with --management URL.",
        )
    await live.apply(before.plan, said=said)
    if not before.there.is_complete:
        await live.bind([each for each in before.want.bindings if each.source])
    if migrate:
        await _migrated(live, source, said)
    return await planned(live, source)


async def _migrated(live: LiveBroker, source: Source, said: Callable[[str], None]) -> None:
    # Each migration is planned anew: the one before has changed what is there.
    done: set[str] = set()
    while True:
        left = [each for each in (await planned(live, source)).migrations if each.queue.name not in done]
        if not left:
            return
        said(f'Migrating queue "{left[0].queue.name}" by way of "{left[0].holding}".')
        await live.migrate(left[0], said=lambda step: said(step.text))
        done.add(left[0].queue.name)


def refusal_text(steps: Iterable[Step]) -> str:
    """One line for each setting that is not as wanted."""
    lines = [f'{step.kind} "{step.name}": {difference}' for step in steps for difference in step.differences]
    count = f"{len(lines)} setting{'' if len(lines) == 1 else 's'} not as wanted"
    return f"{count}, and no broker changes them in place: {'; '.join(lines)}. Nothing was declared."


def _hint(steps: Iterable[Step], *, migrate: bool) -> str:
    if not migrate and all(step.needs is Needs.MIGRATION for step in steps):
        return "Change the topology, or replace the queues with all their messages: redrive topology apply --migrate."
    return "Change the topology, or delete and declare it by hand when it is empty and unused."


# ---------------------------------------------------------------------------------------------------- documents


def planned_document(found: Planned) -> dict[str, Any]:
    """As plain values, for `--json`."""
    return {
        "broker": found.place,
        "clean": found.is_clean,
        "complete": found.there.is_complete,
        "notes": list(found.there.notes),
        "steps": [step_document(step) for step in found.plan.steps],
        "migrations": [migration_document(each) for each in found.migrations],
    }


def step_document(step: Step) -> dict[str, Any]:
    """One step of a plan."""
    return {
        "mark": str(step.mark),
        "kind": str(step.kind),
        "name": step.name,
        "needs": str(step.needs),
        "drift": step.is_drift,
        "consequence": step.consequence,
        "differences": [
            {"setting": each.setting, "have": _plain(each.have), "want": _plain(each.want)} for each in step.differences
        ],
        "notes": list(step.notes),
    }


def migration_document(migration: Migration) -> dict[str, Any]:
    """One migration."""
    return {
        "queue": migration.queue.name,
        "holding": migration.holding,
        "steps": [{"text": step.text, "killed_here": step.killed_here} for step in migration.steps],
        "before": list(migration.before),
        "risks": list(migration.risks),
    }


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
