"""Gets servers on a Debian machine where we are root: the release's own packages, and newer ones from a newer release.

The package is installed without starting its service: tests start nodes of their own, and a machine that got the
package for a test run does not want a server on port 5672. A newer one is no installation at all: debootstrap unpacks
a small Debian with the server in it into a cache folder, from which it runs with chroot. Interrupted anywhere, the next
run starts over; what is complete is never touched again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redrive.testing.servers.processes import ServerFailed

NEWER_RELEASE: Final = "trixie"
"""The Debian release that has RabbitMQ 4.0 and Valkey 8."""

_POLICY: Final = Path("/usr/sbin/policy-rc.d")
_POLICY_FORBIDS: Final = "#!/bin/sh\nexit 101\n"
_APT_S: Final = 900
_RETRIES: Final = "Acquire::Retries=3"


def is_possible() -> bool:
    """Whether packages can be installed here: Debian's tools, and root."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(package: str) -> None:
    """Install a package, its services not started. Raises `ServerFailed` with apt's words where it cannot be had."""
    _run("apt-get", "-o", _RETRIES, "update")
    with _no_service_starts():
        _run("apt-get", "-o", _RETRIES, "install", "--yes", "--no-install-recommends", package)


def unpack_newer(package: str, folder: Path) -> None:
    """A Debian of `NEWER_RELEASE` with this package in `folder`, from the mirror this machine's apt uses: a minute.

    The folder appears complete or not at all. Raises `ServerFailed` where it cannot be had.
    """
    if shutil.which("debootstrap") is None:
        install("debootstrap")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    options = ("--variant=minbase", f"--include={package}")
    _run("debootstrap", *options, NEWER_RELEASE, str(unfinished), *_mirror())
    shutil.rmtree(unfinished / "var" / "cache" / "apt" / "archives", ignore_errors=True)
    unfinished.rename(folder)


def unpack(package: str, folder: Path) -> None:
    """The files of one package in `folder`, without those it depends on and without installing anything.

    The folder appears complete or not at all. Raises `ServerFailed` where it cannot be had.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _run("apt-get", "-o", _RETRIES, "update")
    _run("apt-get", "-o", _RETRIES, "download", package, folder=unfinished)
    for archive in unfinished.glob("*.deb"):
        _run("dpkg-deb", "-x", str(archive), str(unfinished))
        archive.unlink()
    unfinished.rename(folder)


def _mirror() -> list[str]:
    """Where apt gets this release's main packages from; nothing where that is not a plain web mirror."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    targets = _run(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"
    )
    for line in targets.splitlines():
        uri, _, kind = line.partition(" ")
        if kind == f"{release} main" and uri.startswith(("http://", "https://")):
            return [uri]
    return []


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian's own switch: while this file forbids it, installing a package starts no service."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text(_POLICY_FORBIDS, "ascii")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _run(*command: str, folder: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", **_proxy()}
    done = subprocess.run(  # noqa: S603 - Debian's own tools
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_APT_S,
        env=environment,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ServerFailed(f"{' '.join(command)} failed:\n{said}")
    return done.stdout


def _proxy() -> dict[str, str]:
    """A proxy may be known to apt and not to debootstrap, which asks the environment only."""
    if "http_proxy" in os.environ:
        return {}
    asked = subprocess.run(
        ["apt-config", "shell", "proxy", "Acquire::http::Proxy"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    _, _, value = asked.stdout.strip().partition("=")
    return {"http_proxy": value.strip("'")} if value else {}
