"""Which app a command works on: `MODULE:APP`, or just a broker, from an option, the environment or redrive.toml."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive
    from redrive.service import Service

Result = TypeVar("Result")

WHERE_FROM: Final = (
    "Name the app with --app MODULE:APP, or the broker with --broker URL, REDRIVE_BROKER or redrive.toml "
    '(for example --broker "sqlite:///redrive.db").'
)


def load_app(spec: str) -> Redrive:
    """The app `MODULE:APP` names (`MODULE` alone: its `app`), with the working directory importable.

    Raises `ConfigurationError` saying which part was not found, or where the module broke while it was imported.
    """
    from redrive.runtime.app import Redrive

    module_name, _, name = spec.partition(":")
    name = name or "app"
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise ConfigurationError(
            f'"{spec}" names no app.', hint='Write MODULE:APP, for example "orders:app" for app in orders.py.'
        )
    module = _imported(module_name)
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Redrive):
        return found
    apps = [key for key, value in vars(module).items() if isinstance(value, Redrive)]
    hint = (
        f"It has: {', '.join(f'{module_name}:{app}' for app in apps)}." if apps else "It holds no Redrive app at all."
    )
    what = "does not exist" if found is None else f"is a {type(found).__name__}, not a Redrive app"
    raise ConfigurationError(f'"{name}" in module "{module_name}" {what}.', hint=hint)


def _imported(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f'There is no module "{name}" in {here} or among the installed packages.',
                hint="Run the command in the directory the module is in, and name it with dots and without .py.",
            ) from None
        raise _broken(name, error) from error
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f'Importing "{name}" failed with {type(error).__name__}: {_text(error)} ({_place(error)}).',
        hint="Nothing was started or changed.",
    )


def _text(error: BaseException) -> str:
    return str(error.msg if isinstance(error, SyntaxError) else error)


def _place(error: BaseException) -> str:
    """The file and line where the user has to look: of the syntax error, else the last outside the import machinery."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    machinery = {str(Path(__file__)), importlib.__file__}
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename not in machinery and not frame.filename.startswith("<frozen")]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "no file"


def find_app(app: str | None, broker: str | None, *, may_create: bool = False) -> Redrive:
    """The app a command is about. Without `--app` it is a nameless one that knows only the broker.

    Raises `ConfigurationError` where neither is given, or where the broker is a file that does not exist: looking
    must not make an empty one (`may_create` allows it, for publishing).
    """
    from redrive.runtime.app import Redrive

    if app is not None and broker is not None:
        raise ConfigurationError("--app and --broker cannot be given together: an app has its broker.")
    if app is not None:
        return load_app(app)
    found = Redrive("redrive", broker)
    _check_exists(found.settings.broker, is_named=broker is not None, may_create=may_create)
    return found


def _check_exists(url: str, *, is_named: bool, may_create: bool) -> None:
    from redrive.runtime.adapters import sqlite_path
    from redrive.runtime.settings import Settings

    if url.startswith("memory:"):
        raise ConfigurationError("memory:// lives inside one process; another one sees nothing of it.", hint=WHERE_FROM)
    if not url.startswith("sqlite:") or Path(sqlite_path(url)).exists():
        return
    if not is_named and url == Settings.__dataclass_fields__["broker"].default:
        raise ConfigurationError("No app and no broker is given.", hint=WHERE_FROM)
    if not may_create:
        raise ConfigurationError(f'There is no file "{sqlite_path(url)}". Nothing was changed.', hint=WHERE_FROM)


def on_service(
    app: str | None, broker: str | None, action: Callable[[Service], Awaitable[Result]], *, may_create: bool = False
) -> Result:
    """Open the app, do one thing with its service, close it; returns what the action returned."""
    import asyncio

    from redrive.service import Service

    found = find_app(app, broker, may_create=may_create)

    async def work() -> Result:
        async with found:
            return await action(Service(found))

    return asyncio.run(work())
