"""`redrive serve` and `redrive token`: the admin API, and who may use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from redrive.cli import options as o
from redrive.cli.output import note, print_json, say, table
from redrive.cli.processes import HostOption, PortOption
from redrive.core.access import Role

if TYPE_CHECKING:
    from redrive.web.admin.auth.tokens import TokenFile

FileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="The file of tokens (else the setting admin_tokens: redrive-tokens.toml).",
        show_default=False,
    ),
]
NameArgument: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; stands in audit trails.")]


def serve(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP|URL", help="The app, e.g. orders:app; or just the URL of its broker.")
    ],
    *,
    host: HostOption = None,
    port: PortOption = None,
    no_admin: Annotated[bool, typer.Option("--no-admin", help="Gateway and probes only.")] = False,
    is_json: o.JsonOption = False,
) -> None:
    """Serve the admin API, what the app mounts (its gateway) and the probes, without a worker.

    Where no token was made (`redrive token create`) and admin_jwt is not set, it listens on this machine only and
    prints a token that is good until it ends. Anywhere else it does not start without one of them.

    \b
      redrive serve orders:app
      redrive serve sqlite:///orders.db --port 8088
      redrive serve orders:app --host 0.0.0.0 --no-admin      the gateway, open to all
    """
    from redrive.cli.hosting import Hosting, address_of, host_app
    from redrive.cli.target import find_app, load_app

    app = find_app(None, target) if "://" in target else load_app(target)
    options = Hosting(address=(host, port), is_json=is_json, is_working=False, has_admin=not no_admin)
    if not no_admin:
        from redrive.web.admin import guard_of

        guard_of(app, host=address_of(app, options)[0])  # refused here, before anything runs
    raise typer.Exit(host_app(app, options))


def create_token(
    name: NameArgument,
    *,
    role: Annotated[Role, typer.Option("--role", help="What it may do; each role may all that those before it may.")],
    file: FileOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Make a token for one person or program. It is shown once; what is kept is its hash.

    \b
      redrive token create ann --role operator
      curl -H "Authorization: Bearer rdt_…" http://127.0.0.1:8000/api/v1/me
    """
    from datetime import UTC, datetime

    tokens = _file(file)
    secret = tokens.add(name, role, created_at=datetime.now(UTC).isoformat(timespec="seconds"))
    if is_json:
        print_json({"name": name, "role": str(role), "token": secret, "file": str(tokens.path)})
        return
    say(secret)
    note(f"{name} ({role}) in {tokens.path}. This is the only time it is shown.")


def list_tokens(*, file: FileOption = None, is_json: o.JsonOption = False) -> None:
    """Who may come, and what for. What they show when they come is not kept, so it is not here.

    \b
      redrive token list
    """
    found = _file(file).tokens()
    if is_json:
        rows = [{"name": each.name, "role": str(each.role), "created_at": each.created_at or None} for each in found]
        print_json({"tokens": rows})
        return
    table(("name", "role", "created"), [(each.name, str(each.role), each.created_at) for each in found])


def revoke_token(name: NameArgument, *, file: FileOption = None, is_json: o.JsonOption = False) -> None:
    """Refuse it from the next request on; nothing has to be started again.

    \b
      redrive token revoke ann
    """
    tokens = _file(file)
    tokens.revoke(name)
    if is_json:
        print_json({"revoked": name, "file": str(tokens.path)})
        return
    say(f"{name} is revoked in {tokens.path}.")


def _file(path: Path | None) -> TokenFile:
    from redrive.runtime.settings import load_settings
    from redrive.web.admin.auth.tokens import TokenFile

    return TokenFile(Path(load_settings().admin_tokens) if path is None else path)
