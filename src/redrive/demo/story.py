"""The story: accepted, retried then processed, dead with reasons, redriven, processed."""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import redrive
from redrive.core.idempotency import ClaimState
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.demo.downstream import FlakyService, Mood
from redrive.demo.processes import Child, DemoError, run_command
from redrive.demo.sender import Answer, Courier, webhook
from redrive.demo.telling import Teller
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.servers.processes import free_ports

DATABASE: Final = "courier.db"
MAIN_QUEUE: Final = "courier-events-main"
DLQ_QUEUE: Final = "courier-events-dlq"
SOURCE: Final = "courier-x"

FAST_POLICY: Final = {"RETRY_BACKOFF_BASE_MS": "300", "DOWNSTREAM_TIMEOUT_MS": "1000"}
"""The example's own policy waits up to 15 s between attempts; the tour lasts seconds. What the user set wins."""

UP_WAIT_S: Final = 60.0
ACT_WAIT_S: Final = 120.0
POLL_S: Final = 0.05

PAUSE_S: Final = 10.0
"""Between two webhooks while the demo stays up; each EVERY_BADth of them fails."""
EVERY_BAD: Final = 5

GOOD: Final = ("evt-1001", "evt-1002", "evt-1003")
BAD: Final = {
    "evt-2001": Mood.HANG,
    "evt-2002": Mood.GARBAGE,
    "evt-2003": Mood.BROKEN,
    "evt-2004": Mood.PICKY,
}


@dataclass(slots=True, kw_only=True)
class Summary:
    """What came of it. `dead`: reason code and attempts of each event that was given up on the way."""

    directory: str = ""
    accepted: list[str] = field(default_factory=list)
    duplicates: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    recovered: list[str] = field(default_factory=list)
    dead: dict[str, dict[str, Any]] = field(default_factory=dict)
    redriven: int = 0
    processed: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether every accepted event was processed exactly once in the end, the dead ones after their redrive."""
        expected = sorted([*GOOD, *BAD])
        return (
            expected == sorted(self.accepted) == sorted(self.processed)
            and sorted(GOOD) == sorted(self.recovered)
            and sorted(BAD) == sorted(self.dead)
            and len(BAD) == self.redriven
        )

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ok": self.is_complete,
            "directory": self.directory,
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "retries": self.retries,
            "recovered": self.recovered,
            "dead": self.dead,
            "redriven": self.redriven,
            "processed": self.processed,
            "took_s": round(self.took_s, 1),
        }


class Story:
    """One telling. Everything it starts it ends, whatever happens."""

    def __init__(self, place: Path, teller: Teller, *, environment: Mapping[str, str], stays: bool) -> None:
        self._place = place
        self._say = teller
        self._stays = stays
        self._spec, self._cwd = _example()
        self._url = f"sqlite:///{quote(str(place / DATABASE), safe='/ ')}"
        self._downstream = FlakyService()
        self._courier = Courier(name=SOURCE, secret=secrets.token_urlsafe(24), port=free_ports(1)[0])
        self._environment = self._child_environment(environment)
        self._summary = Summary(directory=str(place))
        self._retries: Counter[str] = Counter()
        self._gateway = self._child("gateway", "serve", self._spec, "--port", str(self._courier.port))
        self._worker = self._child("worker", "work", self._spec)
        self._app = Redrive("demo", broker=self._url)

    def _child(self, name: str, *arguments: str) -> Child:
        return Child(arguments, log=self._place / f"{name}.log", environment=self._environment, cwd=self._cwd)

    def _child_environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The user's, with the demo's database and secrets; settings of other redrive apps stay out."""
        kept = {name: value for name, value in given.items() if not name.startswith("REDRIVE_")}
        return {
            **FAST_POLICY,
            **kept,
            "REDRIVE_BROKER": self._url,
            "REDRIVE_LOG_FORMAT": "json",
            "COURIER_SECRETS": json.dumps({SOURCE: [self._courier.secret]}),
            "COURIER_SECRETS_FILE": "",
            "DOWNSTREAM_URL": self._downstream.url,
            "PYTHONUNBUFFERED": "1",
        }

    async def tell(self) -> Summary:
        """The whole story. Raises `DemoError` where it cannot go on, `CancelledError` when it is ended by SIGTERM or by
        a terminal that is closed.
        """
        started = time.monotonic()
        telling = asyncio.current_task()
        assert telling is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, telling.cancel)
        try:
            await self._start()
            async with self._app:
                service = Service(self._app)
                await self._accepted()
                await self._recovered()
                await self._died(service)
                await self._redriven(service)
            self._summary.took_s = time.monotonic() - started
            self._end()
            if self._stays:
                await self._stay()
        finally:
            await self._stop()
        return self._summary

    # ------------------------------------------------------------------------------------------- the acts

    async def _start(self) -> None:
        self._say.act("Starting a gateway and a worker, each the command you would type")
        self._say.command(self._gateway.typed)
        await self._gateway.start(self._heard)
        self._say.command(self._worker.typed)
        await self._worker.start(self._heard)
        await self._until(lambda: _is_ready(self._courier.port), what="the gateway to be ready", wait_s=UP_WAIT_S)
        self._say.note(f"The gateway listens on http://127.0.0.1:{self._courier.port}/webhooks/{SOURCE}.")
        self._say.note("The service behind the worker is down: every connection to it is refused.")

    async def _accepted(self) -> None:
        self._say.act("1. Webhooks come in, signed. A 202 means: durable, whatever happens next")
        bodies = [webhook(event_id, "in_transit") for event_id in GOOD]
        for body in bodies:
            await self._post(body)
        repeat = await self._send(bodies[0])
        self._summary.duplicates += bool(repeat.document.get("duplicate"))
        self._say.line("202", f"{GOOD[0]} again: duplicate, nothing enqueued twice", style="green")
        stranger = replace(self._courier, secret=secrets.token_urlsafe(24))
        forged = await asyncio.to_thread(stranger.send, webhook("evt-6666", "stolen"))
        code = str(forged.document.get("type", "")).rpartition(":")[2]
        self._summary.refused[code] = forged.status
        self._say.line(str(forged.status), f"evt-6666 with a forged signature: {code}", style="yellow")

    async def _recovered(self) -> None:
        self._say.act("2. The service is down: attempts fail and back off. Then it comes up")
        await self._until(lambda: len(self._retries) >= len(GOOD), what="the first retries")
        self._downstream.open()
        self._say.line("up", "the service listens now; nobody sends anything again", style="green")
        await self._until_processed(GOOD)
        for event_id in GOOD:
            attempt = max(visit.attempt for visit in self._downstream.visits if visit.event_id == event_id)
            self._summary.recovered.append(event_id)
            self._say.line("processed", f"{event_id} on attempt {attempt}", style="green")

    async def _died(self, service: Service) -> None:
        self._say.act("3. Some events fail every time: they end as dead letters, each with its reason")
        self._downstream.treat(BAD)
        for event_id, mood in BAD.items():
            await self._post(webhook(event_id, "delivered"), note=f"(the service {mood.value})")
        letters = await self._letters(service, len(BAD))
        rows = [
            (_event_id(letter), str(letter.attempt_count), letter.reason.code, letter.reason.text) for letter in letters
        ]
        self._say.table(("event", "attempts", "reason", "what it means"), rows)
        for letter in letters:
            self._summary.dead[_event_id(letter)] = {
                "letterId": letter.id,
                "reasonCode": letter.reason.code,
                "reasonText": letter.reason.text,
                "attempts": letter.attempt_count,
            }

    async def _redriven(self, service: Service) -> None:
        self._say.act("4. The cause is fixed. Send the letters back")
        self._downstream.mend()
        arguments = ("dlq", "redrive", DLQ_QUEUE, "--broker", self._url, "--note", "the service is fixed", "--yes")
        self._say.command(shlex.join(("redrive", *arguments)))
        await run_command(arguments, environment=self._environment, cwd=self._cwd)
        await self._until_processed(tuple(BAD))
        for event_id in BAD:
            self._say.line("processed", event_id, style="green")
        jobs = await service.jobs(limit=10)
        self._summary.redriven = sum(job.counts.sent for job in jobs)
        self._summary.processed = sorted(self._downstream.taken())
        self._summary.retries = dict(sorted(self._retries.items()))

    def _end(self) -> None:
        summary = self._summary
        self._say.act(
            "Done: every event was processed, none twice, none lost" if summary.is_complete else "Not as planned"
        )
        self._say.note(
            f"{len(summary.accepted)} accepted, {summary.duplicates} duplicate, {sum(self._retries.values())} retries, "
            f"{len(summary.dead)} dead, {summary.redriven} redriven, {len(summary.processed)} processed, "
            f"in {summary.took_s:.1f} s."
        )
        self._say.act("What to try next")
        broker = ("--broker", self._url)
        for note, arguments in (
            (
                "The letters, closed now that their copies succeeded:",
                ("dlq", "list", DLQ_QUEUE, "--state", "closed", *broker),
            ),
            ("One of them with its attempts and its trail:", ("dlq", "show", self._some_letter(), *broker)),
            ("Everything that waits, is in hand, or is dead:", ("queues", "list", *broker)),
            ("The same system without the tour:", ("up", self._spec)),
        ):
            self._say.note(note)
            self._say.command(shlex.join(("redrive", *arguments)))
        self._say.note(f"The code that ran is {self._spec} ({self._cwd}); the logs are in {self._place}.")

    async def _stay(self) -> None:
        self._say.act("Still running: a webhook comes in every ten seconds, every fifth dies. Ctrl-C stops")
        self._say.note(f"Health and metrics: http://127.0.0.1:{self._courier.port}/readyz and /metrics")
        number = 3_000
        while True:
            self._gateway.check()
            self._worker.check()
            number += 1
            mood = Mood.PICKY if number % EVERY_BAD == 0 else Mood.WELL
            self._downstream.treat({f"evt-{number}": mood})
            await self._post(webhook(f"evt-{number}", "in_transit"), note=f"(the service {mood.value})")
            await asyncio.sleep(PAUSE_S)

    async def _stop(self) -> None:
        await asyncio.gather(self._worker.stop(), self._gateway.stop(), return_exceptions=True)
        self._downstream.close()

    # ------------------------------------------------------------------------------------------- parts of acts

    async def _post(self, body: Mapping[str, Any], *, note: str = "") -> None:
        event_id = str(body["eventId"])
        answer = await self._send(body)
        if answer.status != 202:  # noqa: PLR2004 - Accepted
            raise DemoError(f"The gateway answered {answer.status} to {event_id}: {dict(answer.document)}")
        self._summary.accepted.append(event_id)
        self._say.line("202", f"{event_id} accepted {note}".rstrip(), style="green")

    async def _send(self, body: Mapping[str, Any]) -> Answer:
        try:
            return await asyncio.to_thread(self._courier.send, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._gateway.check()
            raise DemoError(f"The gateway could not be reached: {error!r}. See {self._gateway.log}.") from error

    def _heard(self, line: dict[str, Any]) -> None:
        """One line of a child's log: the failures are told as they happen."""
        name, key = line.get("event"), str(line.get("key", "")).rpartition(":")[2]
        if name == "delivery.retry_scheduled":
            self._retries[key] += 1
            text = f"{key} attempt {line.get('attempt')}: {line.get('error_code')}, again in {line.get('delay_ms')} ms"
            self._say.line("retry", text, style="yellow")
        elif name == "delivery.dead_lettered":
            self._say.line("dead", f"{key}: {line.get('reason_code')}", style="red")

    async def _until_processed(self, event_ids: tuple[str, ...]) -> None:
        async def all_processed() -> bool:
            records = [await self._app.backend.claims.get(MAIN_QUEUE, f"{SOURCE}:{event_id}") for event_id in event_ids]
            return all(record is not None and record.state is ClaimState.PROCESSED for record in records)

        await self._until(all_processed, what=f"{', '.join(event_ids)} to be processed")

    async def _letters(self, service: Service, count: int) -> list[Letter]:
        selection = Selection(queue=DLQ_QUEUE, states=OPEN_STATES)

        async def all_there() -> bool:
            return len((await service.letters(selection)).letters) >= count

        await self._until(all_there, what="the dead letters")
        page = await service.letters(selection)
        return [(await service.letter(summary.id)).letter for summary in page.letters]

    async def _until(self, condition: Callable[[], Any], *, what: str, wait_s: float = ACT_WAIT_S) -> None:
        """Look again until `condition` holds; a child that ended, or `wait_s`, ends the tour."""
        limit = time.monotonic() + wait_s
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            self._gateway.check()
            self._worker.check()
            if time.monotonic() > limit:
                raise DemoError(f"Waited {wait_s:g} s for {what}. See the logs in {self._place}.")
            await asyncio.sleep(POLL_S)

    def _some_letter(self) -> str:
        return next((str(dead["letterId"]) for dead in self._summary.dead.values()), "LETTER")


def _example() -> tuple[str, Path]:
    """The courier app to run and where: the one in the working directory, in the source tree, or the installed copy."""
    for root in (Path.cwd(), Path(redrive.__file__).parents[2]):
        if (root / "examples" / "courier" / "__init__.py").is_file():
            return "examples.courier:app", root
    if (Path(__file__).parent / "courier" / "__init__.py").is_file():
        return "redrive.demo.courier:app", Path.cwd()
    raise DemoError("The courier example is not part of this installation. Run the demo in a clone of the repository.")


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200  # noqa: PLR2004 - OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _event_id(letter: Letter) -> str:
    return str(letter.message.key).rpartition(":")[2]
