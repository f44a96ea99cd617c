"""`redrive demo | up | work | serve`: the commands that stay until they are told to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from redrive.cli import options as o
from redrive.cli.target import load_app

AppArgument: TypeAlias = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, e.g. orders:app.")]
QueuesOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--queues", metavar="A,B", help="Only these queues, separated by commas.", show_default=False),
]
GraceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--grace",
        metavar="TIME",
        help="How long handlers get to finish when stopped (default 30s).",
        show_default=False,
    ),
]
HostOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--host", metavar="HOST", help="Address to listen on (default 127.0.0.1).", show_default=False),
]
PortOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65_535, help="Port; 0 takes any free one (default 8000).", show_default=False),
]


def demo(
    *,
    once: Annotated[bool, typer.Option("--once", help="Play the story once and exit; for scripts and CI.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="Where its file goes (else a new one).", show_default=False),
    ] = None,
    is_json: o.JsonOption = False,
) -> None:
    """The five-minute tour: signed webhooks come in, some fail and recover, some die with a reason, and are redriven.

    \b
      redrive demo
      redrive demo --once --json
    """
    from redrive.demo import run

    raise typer.Exit(run(once=once, as_json=is_json, directory=directory))


def up(
    spec: AppArgument,
    *,
    queues: QueuesOption = None,
    host: HostOption = None,
    port: PortOption = None,
    grace: GraceOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Run everything in one process: a worker, what the app mounts (its gateway), /metrics, /healthz and /readyz.

    For development, and for one small machine. Ctrl-C drains, a second one stops at once.

    \b
      redrive up orders:app
      redrive up orders:app --port 0 --json      a free port, printed as JSON
    """
    from redrive.cli.hosting import Hosting, host_app

    address = (host, port)
    raise typer.Exit(
        host_app(load_app(spec), Hosting(queues=_names(queues), address=address, grace=grace, is_json=is_json))
    )


def work(
    spec: AppArgument,
    *,
    processes: Annotated[
        int | None,
        typer.Option("--processes", "-p", min=1, max=256, help="Worker processes (default 1).", show_default=False),
    ] = None,
    queues: QueuesOption = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz there.", show_default=False
        ),
    ] = None,
    grace: GraceOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Run a worker. SIGTERM drains: what runs finishes or goes back and costs no attempt. A second one stops at once.

    \b
      redrive work orders:app
      redrive work orders:app --processes 4 --queues orders,refunds --http 0.0.0.0:9000
    """
    from redrive.cli.hosting import Hosting, work_app

    options = Hosting(queues=_names(queues), address=parse_address(http), grace=grace, is_json=is_json)
    raise typer.Exit(work_app(spec, options, processes=processes))


def _names(queues: str | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    names = tuple(name.strip() for name in queues.split(",") if name.strip())
    o.refuse_unless(names, f'--queues "{queues}" names no queue.')
    return names


def parse_address(http: str | None) -> tuple[str | None, int] | None:
    """`HOST:PORT`, `:PORT` or `[::1]:PORT`. Raises `ConfigurationError`."""
    if http is None:
        return None
    host, colon, port = http.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65_535  # noqa: PLR2004 - the highest port
    o.refuse_unless(
        colon and is_port, f'--http "{http}" is not HOST:PORT.', "For example 127.0.0.1:9000, or 127.0.0.1:0."
    )
    return host.strip("[]") or None, int(port)
