"""`redrive queues pause | resume | quarantine | release`."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from redrive.cli import options as o
from redrive.cli.groups import Where, spread
from redrive.cli.output import ago, note, plural, print_json, say, table
from redrive.cli.prompts import confirm

if TYPE_CHECKING:
    from redrive.core.policy.control import Control
    from redrive.service import Aside, Name, Released, Service

QueueArgument: TypeAlias = Annotated[str, typer.Argument(metavar="QUEUE", help="The consumer queue.")]
TenantsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--tenant", metavar="NAME", help="This tenant; may be given several times.", show_default=False),
]
KeysOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="This idempotency key; may be given several times.", show_default=False),
]


@spread
def pause(
    queue: QueueArgument,
    *,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Let no worker take messages of a queue; what is in hand ends. It holds until `resume`, also across restarts.

    \b
    Every worker follows within two seconds. Publishing goes on: messages wait in the queue.

    \b
      redrive queues pause orders --note "their API is down" --app orders:app
    """
    _turn(queue, to_pause=True, who=(o.actor_name(actor), note_text), care=(yes, dry_run), where=where)


@spread
def resume(
    queue: QueueArgument,
    *,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Let workers take messages of a queue again.

    \b
      redrive queues resume orders --app orders:app
    """
    _turn(queue, to_pause=False, who=(o.actor_name(actor), note_text), care=(yes, dry_run), where=where)


@spread
def quarantine(
    queue: QueueArgument,
    *,
    tenants: TenantsOption = None,
    keys: KeysOption = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Ends by itself after so long: 2h, 7d.", show_default=False),
    ] = None,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Set the messages of one tenant or key aside; without one, show what is set aside.

    \b
    At its next start such a message becomes a dead letter QUARANTINED instead of being handled; that costs no attempt.
    Others go on. A message that was redriven is handled all the same: so you can try one. See: queues release.

    \b
      redrive queues quarantine orders --tenant acme --until 2h --note "poison files" --app orders:app
      redrive queues quarantine orders --app orders:app
    """
    names = _names(tenants, keys)
    if not names:
        o.refuse_unless(until is None, "Whose messages? Nothing was changed.", "Name a --tenant or a --key.")
        _show(where.run(lambda service: service.control(queue)), is_json=where.is_json)
        return
    age = o.parse_duration(until, "--until")
    end = None if age is None else time.time_ns() // 1_000_000 + int(age.total_seconds() * 1_000)
    if dry_run:
        note(f'Would set {_listed(names)} aside in "{queue}". Nothing was changed.')
        _show(where.run(lambda service: service.control(queue)), is_json=where.is_json)
        return
    confirm(f'Set {_listed(names)} aside in "{queue}"?', yes=yes)
    who = o.actor_name(actor)
    changed = where.run(lambda service: service.quarantine(queue, names, until=end, actor=who, note=note_text))
    _show(changed, is_json=where.is_json)


@spread
def release(
    queue: QueueArgument,
    *,
    tenants: TenantsOption = None,
    keys: KeysOption = None,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Handle messages again that were set aside; without a name, of all tenants and keys of the queue.

    \b
    What lies aside already stays a dead letter: the command that sends it back is printed. Where the order per key
    matters, pause the queue first, and resume it when the redrive is done.

    \b
      redrive queues release orders --tenant acme --app orders:app
    """
    names = _names(tenants, keys)
    if dry_run:
        note(f'Would release {_listed(names) or "all"} in "{queue}". Nothing was changed.')
        _show(where.run(lambda service: service.control(queue)), is_json=where.is_json)
        return
    confirm(f'Release {_listed(names) or "all that is set aside"} in "{queue}"?', yes=yes)
    who = o.actor_name(actor)
    found = where.run(lambda service: service.release(queue, names, actor=who, note=note_text))
    _tell_released(queue, found, is_json=where.is_json)


def _turn(queue: str, *, to_pause: bool, who: tuple[str, str], care: tuple[bool, bool], where: Where) -> None:
    yes, dry_run = care
    verb = "pause" if to_pause else "resume"
    if dry_run:
        control = where.run(lambda service: service.control(queue))
        note(f'Would {verb} "{queue}". Nothing was changed.')
    else:
        confirm(f'{verb.capitalize()} "{queue}" in every worker?', yes=yes)
        control = where.run(lambda service: _turned(service, queue, to_pause=to_pause, who=who))
    if where.is_json:
        from redrive.views import control_view_document

        print_json(control_view_document(control))
    elif control.paused is None:
        say(f'"{queue}" is not paused.')
    else:
        since = ago(control.paused.at, time.time_ns() // 1_000_000)
        why = f": {control.paused.note}" if control.paused.note else ""
        say(f'"{queue}" is paused by {control.paused.actor} since {since}{why}. Resume: redrive queues resume {queue}')


async def _turned(service: Service, queue: str, *, to_pause: bool, who: tuple[str, str]) -> Control:
    actor, note_text = who
    turn = service.pause_queue if to_pause else service.resume_queue
    return await turn(queue, actor=actor, note=note_text)


def _names(tenants: list[str] | None, keys: list[str] | None) -> list[Name]:
    from redrive.core.policy.control import Kind

    return [*((Kind.TENANT, each) for each in tenants or ()), *((Kind.KEY, each) for each in keys or ())]


def _listed(names: list[Name]) -> str:
    return ", ".join(f'{kind} "{name}"' for kind, name in names)


def _show(control: Control, *, is_json: bool) -> None:
    if is_json:
        from redrive.views import control_view_document

        print_json(control_view_document(control))
        return
    if not control.quarantined:
        note(f'Nothing is set aside in "{control.queue}".')
        return
    now = time.time_ns() // 1_000_000
    table(
        ("what", "name", "ends in", "who", "since", "why"),
        [
            (
                each.kind,
                each.name,
                None if each.until is None else (ago(now, each.until) if each.holds(now) else "over"),
                each.actor,
                ago(each.at, now),
                each.note,
            )
            for each in control.quarantined
        ],
        right=("ends in", "since"),
        spare=("why",),
    )


def _tell_released(queue: str, found: Released, *, is_json: bool) -> None:
    if is_json:
        from redrive.views import released_document

        print_json(released_document(found))
        return
    if not found.asides:
        note(f'Nothing is set aside in "{queue}".')
    for each in found.asides:
        say(f'{each.kind} "{each.name}": released; {plural(each.letters, "letter")} aside.')
        if each.letters:
            say(f"  Send back: {_command(queue, each)}")


def _command(queue: str, aside: Aside) -> str:
    words = ("dlq", "redrive", queue, "--reason", str(aside.selection.reason_code), f"--{aside.kind}", aside.name)
    return f"redrive {shlex.join(words)}"
