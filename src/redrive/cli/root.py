"""The tree of commands."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from redrive.cli import jobs, letters, messages, processes, storage

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Try it": ("demo",),
    "Run": ("up", "work", "serve"),
    "Send": ("publish",),
    "Dead letters": ("dlq",),
    "Look after": ("queues", "backup", "restore"),
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
        return str(command.get_short_help_str(limit=70))


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
    """redrive makes failing messages boring: retries that back off, dead letters with their reason, safe redrive.

    \b
    The first minute:
      redrive demo                              watch webhooks fail, recover, and die
      redrive up orders:app                     run your own app, everything in one process
      redrive publish orders '{"id": 1}'        send it something
      redrive dlq list                          see what died, and why
      redrive dlq redrive orders --dry-run      see what sending it back would do

    Every command has --help with examples, and --json for machines.
    """


app.command("demo")(processes.demo)
app.command("up")(processes.up)
app.command("work")(processes.work)
app.command("serve")(processes.serve)
app.command("publish")(messages.publish)
app.command("backup")(storage.backup)
app.command("restore")(storage.restore)

queues: Final = typer.Typer(help="Queues: what waits in them.", no_args_is_help=True, rich_markup_mode=None)
queues.command("list")(storage.list_queues)
app.add_typer(queues, name="queues")

dlq: Final = typer.Typer(
    help="""Dead letters: look at them, send them back, close them.

    \b
    A letter is pending until a person looked at it (reviewed), replayed once it was sent back, and closed when the
    message was processed or somebody decided that it never will be.

    \b
      redrive dlq stats                         what is wrong, in groups
      redrive dlq list orders --reason TIMEOUT  the letters behind it
      redrive dlq show dl_4f2a…                 one of them, with body and history
      redrive dlq redrive orders --limit 10     send ten back
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
dlq.command("list")(letters.list_letters)
dlq.command("show")(letters.show)
dlq.command("stats")(letters.stats)
dlq.command("redrive")(jobs.redrive)
dlq.command("jobs")(jobs.list_jobs)
dlq.command("resume")(jobs.resume)
dlq.command("abort")(jobs.abort)
dlq.command("review")(letters.review)
dlq.command("close")(letters.close)
dlq.command("restore")(letters.restore)
app.add_typer(dlq, name="dlq")
