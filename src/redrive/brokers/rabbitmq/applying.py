"""What a plan or a migration says, carried out over AMQP (policies through the management API).

Nothing is forced: what the broker refuses stays as it is and ends the run. Every action can be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, assert_never

from redrive.brokers.rabbitmq.failures import NOTHING_CHANGED, ChannelLost, LinkLost, refused
from redrive.brokers.rabbitmq.management import Management
from redrive.brokers.rabbitmq.probing import probe_queue
from redrive.brokers.rabbitmq.session import ErrandChannel, Session, as_declared
from redrive.core.live import Said
from redrive.core.ports import Clock
from redrive.core.topology.migration import AwaitEmpty, Bind, Declare, Delete, Migration, MigrationStep, Move, Unbind
from redrive.core.topology.model import Binding, Exchange, Policy, Queue, QueueType
from redrive.core.topology.plan import Kind, Plan, Step
from redrive.errors import BrokerUnavailableError, ConfigurationError

POLL_MS: Final = 250
"""Between two looks at a queue that empties itself."""

STOPPED: Final = "What was done before it stays. Nothing is lost; run it again, it goes on from there."

_TYPE: Final = "x-queue-type"

Mover = Callable[[Move], Awaitable[None]]
"""Carries out a `Move`."""


class Applier:
    """Carries out plans and migrations, one step after the other."""

    def __init__(self, session: Session, *, management: Management | None, clock: Clock, move: Mover) -> None:
        self._session = session
        self._management = management
        self._clock = clock
        self._move = move

    async def apply(self, plan: Plan, *, said: Said) -> None:
        """What the plan leaves to `apply`, in its order; each is said once it is done."""
        fate = NOTHING_CHANGED
        for step in plan.changes:
            await self._apply(step, fate=fate)
            said(f"{step.mark} {step.kind} {step.name}")
            fate = STOPPED

    async def _apply(self, step: Step, *, fate: str) -> None:
        match step.entity:
            case Exchange() as exchange:
                what = f'Exchange "{exchange.name}"'
                await self._on_channel(what, lambda channel: channel.declare_exchange(exchange), fate=fate)
            case Queue() as queue:
                await self._declare(queue, fate=fate)
            case Binding() as binding:
                await self._bind(binding, fate=fate)
            case Policy() as policy:
                await self._put_policy(policy, is_operator=step.kind is Kind.OPERATOR_POLICY)
            case _ as never:
                assert_never(never)

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Each; one that is there stays."""
        for binding in bindings:
            await self._bind(binding)

    async def _bind(self, binding: Binding, *, fate: str = STOPPED) -> None:
        await self._on_channel(_named(binding), lambda channel: channel.bind(binding), fate=fate)

    async def _declare(self, queue: Queue, *, fate: str = STOPPED) -> None:
        async def declare(channel: ErrandChannel) -> None:
            await channel.declare_queue(**as_declared(queue))

        await self._on_channel(f'Queue "{queue.name}"', declare, fate=fate)

    async def _put_policy(self, policy: Policy, *, is_operator: bool) -> None:
        if self._management is None:
            raise ConfigurationError(
                f'Policy "{policy.name}" cannot be declared over AMQP. What came before it is declared.',
                hint="Give the management API (--management URL), or set it with rabbitmqctl set_policy.",
            )
        await self._management.put_policy(policy, operator=is_operator)

    async def _on_channel(
        self, what: str, action: Callable[[ErrandChannel], Awaitable[object]], *, fate: str = STOPPED
    ) -> None:
        try:
            async with self._session.channel() as channel:
                await action(channel)
        except ChannelLost as lost:
            raise refused(what, lost, doing="declared or removed", fate=fate) from lost
        except LinkLost as lost:
            raise self._session.broken(lost) from lost

    # ------------------------------------------------------------------------------------------- migrations

    async def migrate(self, migration: Migration, *, said: Callable[[MigrationStep], None]) -> None:
        """Every step. Stopped in between: each message lies in the queue or in its holding queue."""
        for step in migration.steps:
            said(step)
            await self._carry_out(step)

    async def _carry_out(self, step: MigrationStep) -> None:
        match step.action:
            case Declare(queue=queue):
                await self._declare(queue)
            case Bind(binding=binding):
                await self._bind(binding)
            case Unbind(binding=binding):
                await self._on_channel(_named(binding), lambda channel: channel.unbind(binding))
            case Move() as move:
                await self._move(move)
            case AwaitEmpty(queue=name, at_most_ms=at_most_ms):
                await self._await_empty(name, at_most_ms)
            case Delete(queue=name):
                await self._delete(name)
            case _ as never:
                assert_never(never)

    async def _await_empty(self, name: str, at_most_ms: int) -> None:
        deadline_ms = self._clock.monotonic_ms() + at_most_ms
        while True:
            found = await self._session.counts(name)
            if found is None or found[0] == 0:
                return
            if self._clock.monotonic_ms() >= deadline_ms:
                raise BrokerUnavailableError(
                    f'Queue "{name}" still holds {found[0]} messages after {at_most_ms} ms. The migration stopped.',
                    hint="Nothing is lost. Plan again, and migrate again once it is empty.",
                )
            await self._clock.sleep(POLL_MS)

    async def _delete(self, name: str) -> None:
        """A quorum queue takes no condition, so its counts are looked at right before, on the same channel."""
        found = await probe_queue(self._session, Queue(name=name, arguments={_TYPE: str(QueueType.CLASSIC)}))
        if found is None:
            return
        is_classic = found.arguments.get(_TYPE) == QueueType.CLASSIC

        async def delete(channel: ErrandChannel) -> None:
            ready, consumers = await channel.declare_queue(name, passive=True)
            if ready or consumers:
                raise ConfigurationError(
                    f'Queue "{name}" is not deleted: {ready} messages lie in it and {consumers} consumers read it.',
                    hint="Nothing is lost. Stop its consumers and publishers and migrate again: it goes on from there.",
                )
            await channel.delete_queue(name, if_empty=is_classic)

        await self._on_channel(f'Queue "{name}"', delete)


def _named(binding: Binding) -> str:
    return f'The binding of "{binding.source}" to "{binding.destination}"'
