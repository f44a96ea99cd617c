"""System D, letter by letter from its page: seven queues, each with retry and parking; real files through all."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from redrive.core.topology.definitions import export_definitions
from tests.systems.conftest import Place
from tests.systems.loading import Running, example, running

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "examples" / "file_pipeline" / "infra"

BOUND = {
    "q.upload.commands": [
        ("domain.commands", "commands.upload.#"),
        ("domain.commands", "commands.file.reprocess.*"),
    ],
    "q.validator": [("domain.events", "files.uploaded.*")],
    "q.thumbnail": [("domain.events", "files.validated.*")],
    "q.extractor": [("domain.events", "files.validated.*")],
    "q.projection": [("domain.events", "#")],
    "q.notification": [("domain.events", "processing.#"), ("domain.events", "files.rejected.*")],
    "q.audit": [("domain.events", "#")],
}
LOGGED = ("correlationId", "queue", "routingKey", "messageType", "attempt", "maxAttempts")


@asynccontextmanager
async def pipeline(place: Place, tmp_path: Path, **environment: str) -> AsyncIterator[tuple[ModuleType, Running]]:
    variables = {"PIPELINE_RETRY_DELAY_MS": "100", "PIPELINE_FILES": str(tmp_path / "files"), **place.environment}
    with example("file_pipeline", **variables, **environment) as system:
        async with running(system.app) as run:
            yield system, run


async def upload(system: ModuleType, name: str, content: bytes) -> str:
    """As the upload over HTTP does it; the file's id."""
    file_id = str(system.storage.put(name, content))
    await system.upload.submit(system.app, file_id, name, correlation_id=f"c-{name}")
    return file_id


def rows(tmp_path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(tmp_path / "redrive.db")) as file:
        return file.execute(statement).fetchall()


def picture(width: int = 640, height: int = 480) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(out, format="PNG")
    return out.getvalue()


def pdf(text: str) -> bytes:
    """A PDF of one page with one line of text in it."""
    stream = f"BT /F1 24 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(out)
    return out + b"xref\n0 6\n0000000000 65535 f \n%strailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        table,
        start,
    )


# ------------------------------------------------------------------------------------------------ names


def test_every_name_and_argument_is_the_systems_own() -> None:
    with example("file_pipeline") as system:
        topology = system.app.topology

    types = {"domain.events": "topic", "domain.commands": "topic"}
    expected: dict[str, dict[str, Any]] = {}
    bindings = set()
    for queue, bound in BOUND.items():
        types |= {f"retry.{queue}": "direct", f"dlq.{queue}": "direct"}
        expected[queue] = {
            "x-queue-type": "classic",
            "x-dead-letter-exchange": f"retry.{queue}",
            "x-dead-letter-routing-key": "retry",
        }
        expected[f"{queue}.retry"] = {
            "x-queue-type": "classic",
            "x-message-ttl": 15_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
        }
        expected[f"{queue}.dlq"] = {"x-queue-type": "classic"}
        bindings |= {(source, queue, key) for source, key in bound}
        bindings |= {(f"retry.{queue}", f"{queue}.retry", "retry"), (f"dlq.{queue}", f"{queue}.dlq", "parking")}
    assert types == {each.name: each.type for each in topology.exchanges}
    assert expected == {each.name: dict(each.arguments) for each in topology.queues}
    assert bindings == {(each.source, each.destination, each.routing_key) for each in topology.bindings}
    assert {each.durable for each in (*topology.queues, *topology.exchanges)} == {True}


def test_every_consumer_parks_after_three_attempts() -> None:
    with example("file_pipeline") as system:
        assert {queue: (3, f"{queue}.dlq") for queue in BOUND} == {
            queue: (consumer.max_attempts, consumer.dead_letter_queue)
            for queue, consumer in system.app.consumers.items()
        }


def test_the_definitions_file_is_the_apps_topology() -> None:
    with example("file_pipeline") as system:
        written = (INFRA / "rabbitmq" / "definitions.json").read_text("utf-8")

        assert export_definitions(system.app.topology) == written, "run: redrive topology export (see the README)"


# ------------------------------------------------------------------------------------------------ the work


async def test_real_files_go_through_every_step(place: Place, tmp_path: Path) -> None:
    from PIL import Image

    async with pipeline(place, tmp_path) as (system, run):
        image = await upload(system, "holiday.png", picture())
        report = await upload(system, "report.pdf", pdf("quarterly numbers"))
        notes = await upload(system, "notes.txt", "drei schöne Wörter".encode())
        await run.until(lambda: run.processed("q.notification") == 6 and run.processed("q.audit") == 12)
        await run.until(lambda: run.processed("q.projection") == 12)
        storage = system.storage

        assert [] == await run.letters()
        assert 0 == len(run.named("delivery.retry_scheduled"))
    with Image.open(storage.path(image, ".thumb.png")) as small:
        assert (256, 192) == small.size
    assert "quarterly numbers" == storage.path(report, ".extracted.txt").read_text().strip()
    assert "drei schöne Wörter" == storage.path(notes, ".extracted.txt").read_text()
    assert [
        ("holiday.png", "image", "validated", "done", "skipped"),
        ("notes.txt", "text", "validated", "skipped", "done"),
        ("report.pdf", "pdf", "validated", "skipped", "done"),
    ] == rows(tmp_path, "SELECT name, kind, state, thumbnail, text FROM files ORDER BY name")
    trail = rows(tmp_path, "SELECT what FROM audit WHERE correlation_id = 'c-holiday.png'")
    assert {
        "files.uploaded.image",
        "files.validated.image",
        "processing.thumbnail.done",
        "processing.text.skipped",
    } == {what for (what,) in trail}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("fake.png", b"GIF but not really", "no image"),
        ("fake.pdf", b"%PDF-nothing", "no PDF"),
        ("fake.txt", b"\xff\xfe\x00binary", "no UTF-8"),
        ("empty.txt", b"", "empty"),
        ("tool.exe", b"MZ", "only images"),
        ("bomb.png", picture(8_000, 7_000), "too many"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_rejected_with_the_reason(name: str, content: bytes, why: str) -> None:
    from examples.file_pipeline.files import Rejected, check, kind_of

    with pytest.raises(Rejected, match=why):
        check(kind_of(name), content)


async def test_a_rejection_is_an_answer_and_no_failure(place: Place, tmp_path: Path) -> None:
    async with pipeline(place, tmp_path) as (system, run):
        await upload(system, "fake.png", b"no picture")
        await run.until(lambda: run.processed("q.notification") == 1 and run.processed("q.projection") == 2)

        assert [] == await run.letters()
    ((text,),) = rows(tmp_path, "SELECT text FROM notifications")
    assert text.startswith("fake.png: files.rejected.image (the bytes are no image")
    assert [("rejected",)] == rows(tmp_path, "SELECT state FROM files")


# ------------------------------------------------------------------------------------------------ retry and parking


async def test_a_message_is_parked_after_three_attempts_and_logged(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The volume is away: the same for every attempt; the message is parked, and comes through once it is back."""
    async with pipeline(place, tmp_path) as (system, run):
        file_id = await upload(system, "notes.txt", b"hello")
        await run.until(lambda: run.processed("q.notification") == 2)
        path = system.storage.path(file_id)
        content = path.read_bytes()
        path.unlink()
        await system.upload.submit(
            system.app, file_id, "notes.txt", correlation_id="again", key=f"commands.file.reprocess.{file_id}"
        )
        await run.until(lambda: run.named("delivery.dead_lettered"))
        (letter,) = await run.letters()
        path.write_bytes(content)
        assert 1 == await run.redrive("q.upload.commands")
        await run.until(lambda: run.processed("q.notification") == 4)

    assert ("FILE_NOT_THERE_EXHAUSTED", 3, "q.upload.commands.dlq") == (
        letter.reason.code,
        letter.attempt_count,
        letter.dead_letter_queue,
    )
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    told = [line for line in lines if line.get("queue") == "q.upload.commands"]
    assert ["retry", "retry", "parking"] == [line["event"] for line in told]
    assert [1, 2, 3] == [line["attempt"] for line in told]
    key = f"commands.file.reprocess.{file_id}"
    for line in told:
        assert ("again", "q.upload.commands", key, key, 3) == tuple(line[name] for name in LOGGED if name != "attempt")


async def test_what_is_no_event_is_parked_at_once(place: Place, tmp_path: Path) -> None:
    async with pipeline(place, tmp_path) as (system, run):
        await system.app.publish("commands.upload.file", b"\xff", exchange="domain.commands")
        await run.until(lambda: run.named("delivery.dead_lettered"))
        (letter,) = await run.letters()

    assert ("MALFORMED_PAYLOAD", b"\xff") == (letter.reason.code, letter.message.body)
