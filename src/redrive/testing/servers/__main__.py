"""`python -m redrive.testing.servers`: gets the servers that tests need, where it may (Debian, root), and says what is.

Ends with 1 in CI (`CI=true`) where the tests could not run; at home they skip what is not there, and say so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from redrive.testing.servers import debian
from redrive.testing.servers.processes import ServerFailed
from redrive.testing.servers.promtool import PACKAGE, installed_promtool, promtool_folder
from redrive.testing.servers.rabbitmq_install import installed, rabbitmq_4_folder


def main() -> int:
    """Get what is missing, one line on stdout per server."""
    is_promtool_missing = not _has_promtool() and os.environ.get("CI") == "true"
    return max(_rabbitmq(), int(is_promtool_missing))


def _has_promtool() -> bool:
    if installed_promtool() is None:
        folder = promtool_folder()
        _try_to(f"unpack promtool into {folder}", lambda: debian.unpack(PACKAGE, folder))
    found = installed_promtool()
    _say("promtool: none. The test of our Prometheus rules is skipped." if found is None else f"promtool: {found}")
    return found is not None


def _rabbitmq() -> int:
    if os.environ.get("REDRIVE_TEST_RABBITMQ_URL"):
        _say("RabbitMQ: the one of REDRIVE_TEST_RABBITMQ_URL")
        return 0
    if not installed():
        _try_to("install the package rabbitmq-server", lambda: debian.install("rabbitmq-server"))
    if all(install.major < 4 for install in installed()):
        folder = rabbitmq_4_folder()
        _try_to(f"unpack RabbitMQ 4 into {folder}", lambda: debian.unpack_newer_rabbitmq(folder))
    found = installed()
    for install in found:
        _say(f"{install}: {install.root or ''}{install.programs}")
    if not found:
        _say(
            "RabbitMQ: none. Install rabbitmq-server, or set REDRIVE_TEST_RABBITMQ_URL; tests that need it are skipped."
        )
    return 1 if not found and os.environ.get("CI") == "true" else 0


def _try_to(what: str, get: Callable[[], None]) -> None:
    if not debian.is_possible():
        _say(f"Cannot {what}: that needs Debian and root.")
        return
    _say(f"Going to {what} ...")
    try:
        get()
    except ServerFailed as error:
        _say(f"Could not {what}. {error}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
