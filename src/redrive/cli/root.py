"""The tree of commands."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from redrive.cli import (
    archive,
    audit,
    collect,
    in_place,
    jobs,
    letter_groups,
    letters,
    limits,
    messages,
    processes,
    push,
    serve,
    steering,
    storage,
    top,
    topology,
    watching,
)

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Try it": ("demo",),
    "Run": ("up", "work", "serve", "push"),
    "Send": ("publish",),
    "Dead letters": ("dlq",),
    "RabbitMQ": ("topology",),
    "Look after": ("top", "doctor", "alerts", "metrics", "queues", "audit", "token", "backup", "restore"),
}
"""How `redrive --help` groups the commands; a command that is in no section does not appear."""


class GroupedHelp(TyperGroup):
    """Lists the commands under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One list per section, in the order of `SECTIONS`."""
        for title, names in SECTIONS.items():
            rows = [(name, self._summary(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)

    def _summary(self, ctx: Any, name: str) -> str:
        command = self.get_command(ctx, name)
        assert command is not None, f"{name} is in SECTIONS and not a command"
        return str(command.get_short_help_str())


app: Final = typer.Typer(
    name="redrive",
    cls=GroupedHelp,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"redrive {version('redrive')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Make failing messages boring: retries that back off, dead letters with their reason, safe redrive.

    \b
    The first minute:
      redrive demo                                   watch webhooks fail, recover, and die
      redrive up orders:app                          run your own app, everything in one process
      export REDRIVE_BROKER=sqlite:///orders.db      its file; or say --app orders:app each time
      redrive publish orders '{"id": 1}'             send it something
      redrive dlq list                               see what died, and why
      redrive dlq redrive orders --dry-run           see what sending it back would do

    Every command has --help with examples, and --json for machines.
    """


app.command("demo", short_help="The five-minute tour, with real webhooks")(processes.demo)
app.command("up", short_help="Everything in one process, for development")(processes.up)
app.command("work", short_help="A worker; SIGTERM drains and loses nothing")(processes.work)
app.command("serve", short_help="The admin API, and what the app mounts; no worker")(serve.serve)
app.command("push", short_help="Deliver a queue to an HTTP endpoint; its status decides")(push.push)
app.command("publish", short_help="Send a message, or a file of JSON lines")(messages.publish)
app.command("top", short_help="Watch queues, dead letters, tenants and redrives")(top.top)
app.command("doctor", short_help="What would lose messages, and what helps")(watching.doctor)
app.command("alerts", short_help="What is wrong now, without Prometheus")(watching.alerts)
app.command("metrics", short_help="The Prometheus alert rules")(watching.metrics)
app.command("audit", short_help="Who wrote what over the admin API")(audit.audit)
app.command("backup", short_help="Copy everything into a new file while workers go on")(storage.backup)
app.command("restore", short_help="Put a backup in the place of the broker's file")(storage.restore)

queues: Final = typer.Typer(
    help="Queues: what waits in them, and what people want of them.",
    short_help="What waits in the queues",
    no_args_is_help=True,
    rich_markup_mode=None,
)
queues.command("list", short_help="What is ready, scheduled, in hand and dead")(storage.list_queues)
queues.command("tenants", short_help="Who waits too long in a fair queue, and who gets most of it")(limits.tenants)
queues.command("limits", short_help="Change how tenants take turns, while workers run")(limits.limits)
queues.command("pause", short_help="Let no worker take messages of a queue")(steering.pause)
queues.command("resume", short_help="Let workers take them again")(steering.resume)
queues.command("quarantine", short_help="Set one tenant's or key's messages aside")(steering.quarantine)
queues.command("release", short_help="Handle them again")(steering.release)
app.add_typer(queues, name="queues")

tokens: Final = typer.Typer(
    help="Tokens of the admin API: who may come, and what for.",
    short_help="Who may use the admin API",
    no_args_is_help=True,
    rich_markup_mode=None,
)
tokens.command("create", short_help="Make a token; it is shown once")(serve.create_token)
tokens.command("list", short_help="Names and roles; no token is shown")(serve.list_tokens)
tokens.command("revoke", short_help="Nobody gets in by it any more")(serve.revoke_token)
app.add_typer(tokens, name="token")

dlq: Final = typer.Typer(
    short_help="List, show, count, redrive, review and close dead letters",
    help="""Dead letters: look at them, send them back, close them.

    \b
    A letter is pending until a person looked at it (reviewed), replayed once it was sent back, and closed when the
    message was processed or somebody decided that it never will be.

    \b
      redrive dlq stats                         what is wrong, in groups
      redrive dlq list orders --reason TIMEOUT  the letters behind it
      redrive dlq show dl_4f2a…                 one of them, with body and history
      redrive dlq redrive orders --limit 10     send ten back

    \b
    Letters lie in the store of the app. With --broker amqp://… (or --in-place and an app on RabbitMQ) list, peek and
    redrive work on the broker's own dead-letter queues instead, also on those redrive did not make.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
dlq.command("list", short_help="The letters, oldest first")(letters.list_letters)
dlq.command("peek", short_help="What lies in a RabbitMQ's own dead-letter queue")(in_place.peek)
dlq.command("show", short_help="One letter: reason, attempts, headers, body, audit")(letters.show)
dlq.command("stats", short_help="Counts, and the problems behind them")(letters.stats)
dlq.command("collect", short_help="Take a broker's own dead letters into the store")(collect.collect)
dlq.command("groups", short_help="The problems behind the letters")(letter_groups.list_groups)
dlq.command("redrive", short_help="Send letters back to be processed")(jobs.redrive)
dlq.command("jobs", short_help="Redrive jobs, and how far each is")(jobs.list_jobs)
dlq.command("resume", short_help="Go on with a job that stopped")(jobs.resume)
dlq.command("pause", short_help="Hold a job up until it is resumed")(jobs.pause)
dlq.command("abort", short_help="Stop a job")(jobs.abort)
dlq.command("review", short_help="Mark letters as looked at")(letters.review)
dlq.command("close", short_help="Nothing more will be done with them")(letters.close)
dlq.command("restore", short_help="Make closed letters pending again")(letters.restore)
dlq.command("export", short_help="Write letters to a file, whole")(archive.export)
dlq.command("import", short_help="Load letters from a file")(archive.import_)
dlq.command("prune", short_help="Remove letters for good, into an archive or not")(archive.prune)
dlq.command("archives", short_help="Files of letters that were archived")(archive.archives)
dlq.command("erase", short_help="Erase one person's letters, from store and archives")(archive.erase)

group: Final = typer.Typer(
    short_help="One problem: show it, acknowledge, ignore, resolve it",
    help="""One problem behind dead letters, and what people make of it.

    \b
      redrive dlq groups                          which there are
      redrive dlq group show v2-9f…               one of them
      redrive dlq group resolve v2-9f… --in 1.4   fixed; a new failure opens it again
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
group.command("show", short_help="How often, since when, whom it hit")(letter_groups.show)
group.command("acknowledge", short_help="Somebody knows of it")(letter_groups.acknowledge)
group.command("ignore", short_help="Leave it alone, up to a bound")(letter_groups.ignore)
group.command("resolve", short_help="It is fixed")(letter_groups.resolve)
group.command("reopen", short_help="It is open again")(letter_groups.reopen)
group.command("note", short_help="Write on it")(letter_groups.write_note)
group.command("assign", short_help="Say who looks after it")(letter_groups.assign)
dlq.add_typer(group, name="group")
app.add_typer(dlq, name="dlq")

topologies: Final = typer.Typer(
    short_help="Exchanges and queues: show, verify, plan, apply, export",
    help="""Topologies of RabbitMQ: of an app, of a definitions file, or of a live broker.

    \b
      redrive topology verify definitions.json       every way in which it loses messages
      redrive topology plan orders:app               what the broker lacks, and what is there otherwise
      redrive topology apply orders:app              declare what is missing
      redrive topology show orders:app --mermaid     a picture
      redrive topology export orders:app             a file for rabbitmqctl import_definitions
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
topologies.command("show", short_help="What there is, and where messages go")(topology.show)
topologies.command("verify", short_help="Every way to lose a message, or the proof that there is none")(topology.verify)
topologies.command("plan", short_help="What differs on a broker, and what that does to messages")(topology.plan)
topologies.command("apply", short_help="Declare what is missing; migrate queues that changed")(topology.apply)
topologies.command("export", short_help="A definitions file, the same every time")(topology.export)
app.add_typer(topologies, name="topology")
