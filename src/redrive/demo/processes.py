"""Child processes of the demo: the commands a user would type, with their logs kept and read."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from redrive.runtime.hosting import LIFELINE

STOP_WAIT_S: Final = 30.0
"""A child that has not ended so long after SIGTERM is killed."""

TAIL_LINES: Final = 15

COMMAND: Final = (sys.executable, "-c", "import sys; from redrive.cli import main; sys.exit(main())")
"""`redrive`, by the interpreter that runs now: a demo must not pick up another installation from PATH."""


class DemoError(Exception):
    """The tour cannot go on; the text says why and what to look at."""


class Child:
    """One `redrive …` process. Its standard error goes to a file; the JSON lines in it are handed on as they come.

    It holds one end of a pipe whose other end only we have: killed at any moment, we take it with us.
    """

    def __init__(self, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self.arguments = tuple(arguments)
        self.log = log
        self._environment = dict(environment)
        self._cwd = cwd
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lifeline: int | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def typed(self) -> str:
        """The command as a person types it."""
        return shlex.join(("redrive", *self.arguments))

    async def start(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        """Start it; `on_line` gets every JSON line of its log."""
        theirs, self._lifeline = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND,
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**self._environment, LIFELINE: str(theirs)},
                pass_fds=(theirs,),
                cwd=self._cwd,
                limit=1024 * 1024,
                # A group of its own: Ctrl-C reaches the demo alone, which then drains its children once, by their ids.
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        self._reading = asyncio.create_task(self._read(on_line))

    async def _read(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self.log.open("ab") as log:
            async for line in self._process.stdout:
                log.write(line)
                log.flush()
                found = _json_object(line)
                if found is not None:
                    on_line(found)

    def check(self) -> None:
        """Raises `DemoError` with the end of its log where it has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise DemoError(
                f"`{self.typed}` ended with {self._process.returncode}. The end of {self.log}:\n{self._tail()}"
            )

    async def stop(self) -> None:
        """SIGTERM, as a deploy does; SIGKILL where that takes too long. Returns when it is gone."""
        if self._process is None or self._lifeline is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_WAIT_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reading is not None:
            await self._reading
        os.close(self._lifeline)
        self._lifeline = None

    def _tail(self) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:])


async def run_command(arguments: Sequence[str], *, environment: Mapping[str, str], cwd: Path) -> str:
    """Run one `redrive …` command to its end; its standard output. Raises `DemoError` where it fails."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        cwd=cwd,
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        command = shlex.join(("redrive", *arguments))
        raise DemoError(f"`{command}` ended with {process.returncode}:\n{errors.decode('utf-8', 'replace').strip()}")
    return output.decode()


def _json_object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
