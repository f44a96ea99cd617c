"""Runs one command and ends it when its owner has gone: `python guard.py OWNER FOLDER LOG COMMAND...`.

A server that a test starts must not outlive the test run, and a run that is killed (kill -9, a CI that loses patience)
can clean up nothing. So every server has this small process as its parent. It waits for two things: the command ends
(so does the guard, with the same code), or the process OWNER ends (the guard kills the command's process group and
removes FOLDER, unless that is empty). If the guard itself is killed, the kernel kills the command (Linux only).

The first line on stdout is the process id of the command; its output goes to the file LOG. Runs as a plain script: it
starts in some 20 ms because it imports nothing of redrive.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.2
_REMOVE_TRIES = 50


def main(arguments: list[str]) -> int:
    """Run the command until it or its owner ends. The exit code is the command's, or 1 when the owner went first."""
    owner, folder, log, *command = arguments
    with open(log, "ab") as output:  # noqa: PTH123 - no pathlib here, for the sake of a fast start
        child = subprocess.Popen(  # noqa: S603 - the command is the caller's
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - the guard has one thread
        )
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    if _child_ended_first(child, int(owner)):
        return child.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if folder:
        _remove(folder)
    return 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _child_ended_first(child: subprocess.Popen[bytes], owner: int) -> bool:
    if not hasattr(os, "pidfd_open"):
        return _child_ended_first_by_polling(child, owner)
    try:
        watched = os.pidfd_open(owner)
    except ProcessLookupError:
        return False
    ended = os.pidfd_open(child.pid)
    ready, _, _ = select.select([watched, ended], [], [])
    return ended in ready


def _child_ended_first_by_polling(child: subprocess.Popen[bytes], owner: int) -> bool:
    while child.poll() is None:
        try:
            os.kill(owner, 0)
        except ProcessLookupError:
            return False
        time.sleep(_POLL_S)
    return True


def _remove(folder: str) -> None:
    """Other processes of the same server may still be ending, and writing: try until nothing is left."""
    for _ in range(_REMOVE_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):  # noqa: PTH110
            return
        time.sleep(_POLL_S)


if __name__ == "__main__":
    # Ctrl-C in the terminal is for the owner; whether the server ends is then the owner's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
