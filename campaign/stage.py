"""The stage of one campaign: a folder, a seeded plan, processes to start and kill, a transcript, and checks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from campaign.app import EFFECTS_TABLE, app
from campaign.journal import Journal
from redrive import Redrive, Settings

ROOT: Final = Path(__file__).resolve().parent.parent
POLL_S: Final = 0.05
LOG_TAIL: Final = 15
LOG_WIDTH: Final = 300

Result = TypeVar("Result")


class CampaignError(Exception):
    """A promise did not hold. The text is the whole story: seed, what was done, what was found, the logs' ends."""


@dataclass(slots=True)
class Process:
    """A real process with its log."""

    role: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None


@dataclass(slots=True)
class Stage:
    """Everything one campaign needs. Made by `stage()`."""

    folder: Path
    seed: int
    rng: random.Random
    processes: list[Process] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    environment: dict[str, str] = field(default_factory=dict)
    """What a campaign's own processes need to know; over what every process gets."""
    _told: list[str] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)
    _echo: bool = False

    @property
    def file(self) -> Path:
        """The file under test."""
        return self.folder / "campaign.db"

    @property
    def journal(self) -> Journal:
        """What handlers and senders wrote down."""
        return Journal(self.folder / "journal.tsv")

    def say(self, text: str) -> None:
        """Add a line to the transcript."""
        line = f"{time.monotonic() - self._started:7.2f} s  {text}"
        self._told.append(line)
        if self._echo:
            print(line, flush=True)

    # ------------------------------------------------------------------------------------------- processes

    def redrive(self, role: str, *arguments: str) -> Process:
        """Start the installed `redrive` command."""
        return self._start(role, [str(Path(sys.executable).parent / "redrive"), *arguments])

    def python(self, role: str, module: str, *arguments: str) -> Process:
        """Start a module of this package."""
        return self._start(role, [sys.executable, "-m", module, *arguments])

    def _start(self, role: str, command: Sequence[str]) -> Process:
        log = self.folder / f"{role}-{len(self.processes)}.log"
        with log.open("wb") as sink:
            popen = subprocess.Popen(
                command, cwd=ROOT, env=self._environment(), stdout=sink, stderr=sink, stdin=subprocess.DEVNULL
            )
        process = Process(role, popen, log)
        self.processes.append(process)
        self.say(f"start {role} (pid {process.pid})")
        return process

    def _environment(self) -> dict[str, str]:
        ours = {
            "REDRIVE_BROKER": f"sqlite:///{self.file}",
            "REDRIVE_LOG_FORMAT": "json",
            "REDRIVE_GRACE": "500ms",
            "REDRIVE_UPKEEP_INTERVAL": "1s",
            "CAMPAIGN_FOLDER": str(self.folder),
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        return kept | ours | self.environment

    def kill(self, process: Process) -> None:
        """`kill -9`, then wait until it is gone."""
        if process.is_alive:
            process.popen.send_signal(signal.SIGKILL)
            self.killed.add(process.pid)
        process.popen.wait()
        self.say(f"kill -9 {process.role} (pid {process.pid})")

    def end(self) -> None:
        """Stop whatever still runs."""
        for process in self.processes:
            if process.is_alive:
                process.popen.kill()
            process.popen.wait()

    def logs(self, role: str) -> Iterator[str]:
        """Every line that processes of this role have logged."""
        for process in self.processes:
            if process.role == role:
                yield from process.log.read_text("utf-8", errors="replace").splitlines()

    # ------------------------------------------------------------------------------------------- the file

    def prepare(self) -> None:
        """Make the file with redrive's schema, and beside it the table of the handlers' own effects."""
        self.ask(_nothing)
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.execute(f"create table {EFFECTS_TABLE} (name text not null, pid integer not null)")

    def effects(self) -> dict[str, int]:
        """How often each effect stands in the file's own table."""
        with closing(sqlite3.connect(self.file, timeout=30)) as connection:
            return dict(connection.execute(f"select name, count(*) from {EFFECTS_TABLE} group by name"))

    def ask(self, question: Callable[[Redrive], Awaitable[Result]]) -> Result:
        """Open the file as any process would, ask, and close it."""

        async def asking() -> Result:
            async with Redrive("campaign", settings=Settings(broker=f"sqlite:///{self.file}")) as opened:
                return await question(opened)

        return asyncio.run(asking())

    # ------------------------------------------------------------------------------------------- waiting and checking

    def until(self, what: str, holds: Callable[[], bool], *, seconds: float) -> None:
        """Wait until it holds; a campaign that waits in vain has found something stuck."""
        deadline = time.monotonic() + seconds
        while not holds():
            self.check(time.monotonic() < deadline, f"after {seconds:.0f} s still not: {what}")
            time.sleep(POLL_S)
        self.say(what)

    def pause(self, low_s: float, high_s: float) -> None:
        """Let a random time pass: this is where a kill falls."""
        time.sleep(self.rng.uniform(low_s, high_s))

    def check(self, holds: bool, text: str) -> None:  # noqa: FBT001 - reads as "check that"
        """Raises `CampaignError` with the whole story unless it holds."""
        if not holds:
            raise CampaignError(self.story(text))

    def same(self, what: str, expected: object, found: object) -> None:
        """Check that what was found is what was expected."""
        self.check(expected == found, f"{what}: expected {_short(expected)}, found {_short(found)}")

    def story(self, end: str) -> str:
        """The transcript, the ends of the logs, and `end`."""
        tails = [f"--- {process.log.name}\n" + "\n".join(_tail(process.log)) for process in self.processes[-6:]]
        return "\n".join([f"seed {self.seed}", *self._told, *tails, "", end, f"Again: --seed {self.seed}"])


@contextmanager
def stage(folder: Path, seed: int, *, echo: bool = False) -> Iterator[Stage]:
    """A stage in a fresh folder; its processes end with it."""
    folder.mkdir(parents=True)
    made = Stage(folder=folder, seed=seed, rng=random.Random(seed), _echo=echo)
    made.say(f"seed {seed}")
    made.prepare()
    try:
        yield made
    except CampaignError:
        raise
    except Exception as error:
        raise CampaignError(made.story(f"{type(error).__name__}: {error}")) from error
    finally:
        made.end()


async def _nothing(_app: Redrive) -> None:
    pass


def _tail(log: Path) -> list[str]:
    return [line[:LOG_WIDTH] for line in log.read_text("utf-8", errors="replace").splitlines()[-LOG_TAIL:]]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}…"


__all__ = ["CampaignError", "Process", "Stage", "app", "stage"]
