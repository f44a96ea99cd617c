"""`python -m redrive.testing.servers`: gets the servers that tests need, where it may (Debian, root), and says what is.

Ends with 1 in CI (`CI=true`) where the tests could not run; at home they skip what is not there, and say so.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial

from redrive.testing.servers import debian
from redrive.testing.servers.mongodb_install import VERSION, install_ferretdb, installed_ferretdb
from redrive.testing.servers.node_install import MAJORS, install_bullmq, installed_bullmq
from redrive.testing.servers.postgres_install import PACKAGE as POSTGRES
from redrive.testing.servers.postgres_install import installed_postgres
from redrive.testing.servers.processes import ServerFailed
from redrive.testing.servers.promtool import PACKAGE, installed_promtool, promtool_folder
from redrive.testing.servers.rabbitmq_install import installed, rabbitmq_4_folder
from redrive.testing.servers.redis_install import installed_redis, valkey_8_folder


def main() -> int:
    """Get what is missing, one line on stdout per server."""
    looks = (_has_promtool, _has_rabbitmq, _has_redis, _has_node, _has_postgres, _has_mongodb)
    has = [look() for look in looks]
    return int(not all(has) and os.environ.get("CI") == "true")


def _has_promtool() -> bool:
    if installed_promtool() is None:
        folder = promtool_folder()
        _try_to(f"unpack promtool into {folder}", lambda: debian.unpack(PACKAGE, folder))
    found = installed_promtool()
    _say("promtool: none. The test of our Prometheus rules is skipped." if found is None else f"promtool: {found}")
    return found is not None


def _has_rabbitmq() -> bool:
    if os.environ.get("REDRIVE_TEST_RABBITMQ_URL"):
        _say("RabbitMQ: the one of REDRIVE_TEST_RABBITMQ_URL")
        return True
    if not installed():
        _try_to("install the package rabbitmq-server", lambda: debian.install("rabbitmq-server"))
    if all(install.major < 4 for install in installed()):
        folder = rabbitmq_4_folder()
        _try_to(f"unpack RabbitMQ 4 into {folder}", lambda: debian.unpack_newer("rabbitmq-server", folder))
    found = installed()
    for install in found:
        _say(f"{install}: {install.root or ''}{install.programs}")
    if not found:
        _say(
            "RabbitMQ: none. Install rabbitmq-server, or set REDRIVE_TEST_RABBITMQ_URL; tests that need it are skipped."
        )
    return bool(found)


def _has_redis() -> bool:
    if os.environ.get("REDRIVE_TEST_REDIS"):
        _say("Redis: the one of REDRIVE_TEST_REDIS")
        return True
    if not installed_redis():
        _try_to("install the package redis-server", lambda: debian.install("redis-server"))
    if all(install.major < 8 for install in installed_redis()):
        folder = valkey_8_folder()
        _try_to(f"unpack Valkey 8 into {folder}", lambda: debian.unpack_newer("valkey-server", folder))
    found = installed_redis()
    for install in found:
        _say(f"{install}: {install.root or ''}{install.program}")
    if not found:
        _say("Redis: none. Install redis-server, or set REDRIVE_TEST_REDIS; tests that need it are skipped.")
    return bool(found)


def _has_postgres() -> bool:
    if os.environ.get("REDRIVE_TEST_POSTGRES"):
        _say("PostgreSQL: the one of REDRIVE_TEST_POSTGRES")
        return True
    if installed_postgres() is None:
        _try_to(f"install the package {POSTGRES}", lambda: debian.install(POSTGRES))
    found = installed_postgres()
    if found is None:
        _say("PostgreSQL: none. Install postgresql, or set REDRIVE_TEST_POSTGRES; tests that need it are skipped.")
    else:
        _say(f"{found}: {found.programs}")
    return found is not None


def _has_node() -> bool:
    if shutil.which("npm") is None:
        _try_to("install the packages of Node", lambda: debian.install("npm"))
    for major in MAJORS:
        if installed_bullmq(major) is None:
            _try_to(f"get Node's BullMQ {major}", partial(install_bullmq, major), needs_root=False)
        found = installed_bullmq(major)
        _say(f"Node's BullMQ {major}: " + ("none. Tests beside it are skipped." if found is None else found))
    return all(installed_bullmq(major) is not None for major in MAJORS)


def _has_mongodb() -> bool:
    if os.environ.get("REDRIVE_TEST_MONGODB"):
        _say("MongoDB: the one of REDRIVE_TEST_MONGODB")
        return True
    if installed_ferretdb() is None:
        _try_to(f"build FerretDB {VERSION} with Go", install_ferretdb, needs_root=False)
    found = installed_ferretdb()
    missing = "none. Install Go, or set REDRIVE_TEST_MONGODB; tests that need it are skipped."
    _say(f"FerretDB: {missing if found is None else found}")
    return found is not None


def _try_to(what: str, get: Callable[[], None], *, needs_root: bool = True) -> None:
    if needs_root and not debian.is_possible():
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
