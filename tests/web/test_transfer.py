"""Letters out and in over HTTP: exact to the last byte and kind of header, in bounded memory, refused by the line."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.access import RedactRule, Role
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.message import Properties
from redrive.errors import BrokerUnavailableError, InvalidMessageError
from redrive.runtime.app import Redrive
from redrive.runtime.archive import letters_in, line_of
from redrive.service import Loading, Service
from redrive.service.transfer import BATCH, BATCH_BYTES
from redrive.testing.samples import HARD_BODIES, hard_letter, kinds, letter, message
from redrive.web.admin.streams import BrokenOffError
from tests.web.conftest import DIED_AT, Api, code, put_letters

EXPORT, IMPORT = "/api/v1/letters/export", "/api/v1/letters/import"
NONE_REFUSED = {"refused": 0, "refusals": []}
LINES = {"content-type": "application/x-ndjson"}


async def everything(app: Redrive) -> list[Letter]:
    return [each async for each in Service(app).whole(Selection())]


async def loaded(api: Api, content: Any, *, query: str = "") -> Any:
    return await api.ask("POST", IMPORT + query, Role.ADMIN, content=content, headers=LINES)


async def test_what_is_exported_is_imported_exactly(api: Api, app: Redrive) -> None:
    given = [
        hard_letter(died_at=app.clock.now()),
        *(letter(f"dl_{n}", message=message(f"m-{n}", body=body)) for n, body in enumerate(HARD_BODIES.values())),
    ]
    await app.backend.letters.put(given)
    before = await everything(app)

    answer = await api.get(EXPORT, Role.OPERATOR)
    await api.post("/api/v1/letters/prune", {"all": True, "archive": True}, role=Role.ADMIN)
    emptied = await everything(app)
    done = (await loaded(api, answer.content)).json()
    again = (await loaded(api, answer.content)).json()

    assert "application/x-ndjson" == answer.headers["content-type"]
    assert [] == emptied
    assert {"dry_run": False, "letters": len(given), "added": len(given), **NONE_REFUSED} == done
    assert 0 == again["added"]
    after = await everything(app)
    assert before == after
    assert [kinds(each.message.headers) for each in before] == [kinds(each.message.headers) for each in after]


async def test_a_selection_is_exported(api: Api, app: Redrive) -> None:
    ids = await put_letters(app, 700)

    part = await api.get(EXPORT, Role.OPERATOR, params={"ids": ids[3]})
    first = await api.get(EXPORT, Role.OPERATOR, params={"limit": 2})
    every = await api.get(EXPORT, Role.OPERATOR)
    none = await api.get(EXPORT, Role.OPERATOR, params={"filter": "tenant:nobody"})

    def found(answer: Any) -> list[str]:
        return [json.loads(line)["id"] for line in answer.content.splitlines()]

    assert ([ids[3]], ids[:2], ids, []) == (found(part), found(first), found(every), found(none))


async def test_a_dry_run_looks_at_every_line_and_stores_none(api: Api, app: Redrive) -> None:
    lines = b"".join(line_of(letter(f"dl_{n}")) for n in range(3))

    good = await loaded(api, lines, query="?dry_run=true")
    bad = await loaded(api, lines + b"{}\n", query="?dry_run=true")

    assert {"dry_run": True, "letters": 3, "added": 0, **NONE_REFUSED} == good.json()
    assert (422, "invalid") == code(bad)
    assert [] == await everything(app)


def changed(**changes: Any) -> bytes:
    document = json.loads(line_of(letter("dl_bad")))
    for name, value in changes.items():
        part = document["message"] if name in ("body", "headers", "priority") else document
        part[name] = value
    return json.dumps(document).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"[" * 100_000 + b"\n",
        b'{"schema":1}\n',
        changed(id=5),
        changed(id=""),
        changed(queue=None),
        changed(state="dead"),
        changed(schema=99),
        changed(body={"$redacted": "x"}),
        changed(body={"$bytes": "no base64"}),
        changed(headers={"a": {"$time": "soon"}}),
        changed(headers=[]),
        changed(priority="high"),
        changed(dead_lettered_at="today"),
        changed(dead_lettered_at=10**18),
        changed(attempt_count=2**40),
        changed(history=[{"attempt": 1}]),
    ],
)
async def test_a_line_that_is_no_letter_is_named_and_what_came_before_it_stays(
    api: Api, app: Redrive, line: bytes
) -> None:
    answer = await loaded(api, line_of(letter("dl_1")) + b"\n" + line + line_of(letter("dl_2")))

    assert (422, "invalid") == code(answer)
    assert (3, 1, 1) == (answer.json()["line"], answer.json()["letters"], answer.json()["added"])
    assert ["dl_1"] == [each.id for each in await everything(app)]


@pytest.fixture
def picky(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store cannot hold letters whose id ends in "bad"; of a batch with one it stores none."""
    real = app.backend.letters.put

    async def put(batch: Any) -> None:
        if any(each.id.endswith("bad") for each in batch):
            raise InvalidMessageError("A number is larger than 64 bits.")
        await real(batch)

    monkeypatch.setattr(app.backend.letters, "put", put)


@pytest.mark.usefixtures("picky")
async def test_a_letter_the_store_refuses_is_named_and_the_others_are_stored(api: Api, app: Redrive) -> None:
    names = ["dl_1", "dl_2bad", "dl_3", "dl_4bad"]
    lines = b"\n".join(line_of(letter(name)) for name in names)  # a blank line behind each

    done = await loaded(api, lines)
    again = (await loaded(api, lines + b"no letter\n")).json()

    why = "A number is larger than 64 bits."
    refusals = [{"line": line, "id": name, "why": why} for line, name in ((3, "dl_2bad"), (7, "dl_4bad"))]
    counts = {"letters": 4, "refused": 2, "refusals": refusals}
    assert (200, {"dry_run": False, "added": 2, **counts}) == (done.status_code, done.json())
    assert {"line": 8, "added": 0, **counts} == {name: again[name] for name in ("line", "added", *counts)}
    assert "2 letters before it are stored" in again["detail"]
    assert ["dl_1", "dl_3"] == [each.id for each in await everything(app)]


@pytest.mark.usefixtures("picky")
async def test_a_letter_the_store_refuses_keeps_no_other_of_its_archive_out(
    api: Api, app: Redrive, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "old.jsonl").write_bytes(b"\n" + b"".join(line_of(letter(name)) for name in ("dl_1bad", "dl_2")))

    done = (await api.post("/api/v1/archives/old.jsonl/restore", role=Role.ADMIN)).json()

    assert (2, 1, [(2, "dl_1bad")]) == (
        *(done[name] for name in ("letters", "added")),
        [(each["line"], each["id"]) for each in done["refusals"]],
    )
    assert ["dl_2"] == [each.id for each in await everything(app)]


async def test_an_empty_import_is_none(api: Api) -> None:
    nothing = {"dry_run": False, "letters": 0, "added": 0, **NONE_REFUSED}
    assert nothing == (await loaded(api, b"")).json()
    assert nothing == (await api.ask("POST", IMPORT, Role.ADMIN)).json()


async def test_only_lines_are_taken(api: Api) -> None:
    answer = await api.ask("POST", IMPORT, Role.ADMIN, content=b"{}", headers={"content-type": "application/json"})

    assert (415, "unsupported_media_type") == code(answer)


async def test_a_line_comes_in_pieces(api: Api, app: Redrive) -> None:
    whole = line_of(letter("dl_1")) + line_of(letter("dl_2")).rstrip(b"\n")

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 7):
            yield whole[at : at + 7]

    assert 2 == (await loaded(api, pieces())).json()["added"]
    assert ["dl_1", "dl_2"] == [each.id for each in await everything(app)]


async def test_an_import_holds_no_more_than_a_batch(api: Api, app: Redrive) -> None:
    """60 MB of letters, and a line without an end, in a few MB."""
    body = b"x" * 200_000

    async def many() -> AsyncIterator[bytes]:
        for n in range(300):
            yield line_of(letter(f"dl_{n:03}", message=message(f"m-{n}", body=body)))

    tracemalloc.start()
    answer = await loaded(api, many(), query="?dry_run=true")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert 300 == answer.json()["letters"]
    assert peak < 20_000_000


@pytest.mark.parametrize("url", ["memory://"])
async def test_a_line_without_an_end_is_refused(api: Api, app: Redrive) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1_048_576

    assert (413, "body_too_large") == code(await loaded(api, endless()))


@pytest.mark.parametrize(
    "redact", [(RedactRule(type="pay.*", role=Role.OPERATOR, fields=("payload.card", "headers.auth")),)]
)
async def test_an_export_hides_what_the_role_may_not_see_and_is_not_loaded(api: Api, app: Redrive) -> None:
    body, headers = b'{"card": "4111", "n": 1}', {"Auth": "s3cret"}
    paid = message("m-1", body=body, original=body, headers=headers, properties=Properties(type="pay.done"))
    await app.backend.letters.put([letter("dl_1", died_at=DIED_AT, message=paid), letter("dl_2", died_at=DIED_AT + 1)])

    operator = (await api.get(EXPORT, Role.OPERATOR)).content
    admin = (await api.get(EXPORT, Role.ADMIN)).content

    assert [line_of(each) for each in await everything(app)] == admin.splitlines(keepends=True)
    assert [] == [secret for secret in (b"4111", b"s3cret") if secret in operator]
    assert operator.splitlines()[1] == admin.splitlines()[1]
    assert (422, "invalid") == code(await loaded(api, operator))


async def test_letters_are_stored_a_batch_at_a_time(app: Redrive) -> None:
    sizes: list[int] = []

    class Counting(Service):
        async def take_in(self, letters: Any) -> int:
            sizes.append(len(letters))
            return await super().take_in(letters)

    small, large = Loading(service=Counting(app), is_dry=False), Loading(service=Counting(app), is_dry=False)
    for number in range(250):
        await small.add(letter(f"dl_{number}"), line=number, size=1)
    for number in range(3):
        await large.add(letter(f"dl_large_{number}"), line=number, size=BATCH_BYTES // 2 + 1)

    assert [100, 100, 2] == sizes
    assert (200, 2) == (small.added, large.added)


async def test_a_server_that_stops_breaks_an_export_off(api: Api, app: Redrive) -> None:
    """Whoever was told of an end has everything."""
    await put_letters(app, 3)
    stream = api.api._streams.of_lines(_forever(), name="letters.jsonl")
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)
        api.api._streams.is_stopping = len(sent) > 3

    async def receive() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(BrokenOffError):
        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)

    assert not [event for event in sent if event.get("more_body") is False]
    assert set() == api.api._streams.open


async def _forever() -> AsyncIterator[bytes]:
    while True:
        yield b"{}\n"


async def test_who_hangs_up_leaves_what_came(api: Api, app: Redrive) -> None:
    """A batch that had come is stored, and the record of the import says that nobody knows how it ended."""
    chunks = [line_of(letter(f"dl_{number:03}")) for number in range(BATCH + 5)]

    async def receive() -> dict[str, Any]:
        if not chunks:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunks.pop(0), "more_body": True}

    async def send(event: dict[str, Any]) -> None:
        raise AssertionError(f"nobody is there for {event}")

    headers = [
        (b"authorization", f"Bearer {api.secrets[Role.ADMIN]}".encode()),
        (b"content-type", b"application/x-ndjson"),
        (b"transfer-encoding", b"chunked"),
    ]
    scope = {"type": "http", "method": "POST", "path": IMPORT, "query_string": b"", "headers": headers}

    await api.api({**scope, "client": ("192.0.2.1", 1)}, receive, send)
    [write] = (await api.get("/api/v1/audit", Role.ADMIN)).json()["writes"]

    assert BATCH == len(await everything(app))
    assert ("import_letters", None) == (write["operation"], write["status"])


@pytest.mark.parametrize("redact", [(RedactRule(role=Role.OPERATOR, fields=("error",)),)])
async def test_no_reader_loads_a_redacted_line(api: Api, app: Redrive, tmp_path: Path) -> None:
    await put_letters(app, 1)
    file = tmp_path / "letters.jsonl"
    file.write_bytes((await api.get(EXPORT, Role.OPERATOR)).content)

    with pytest.raises(InvalidMessageError):
        list(letters_in(file))


async def test_an_export_that_breaks_off_is_told(api: Api, app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    await put_letters(app, 3)
    real, asked = app.backend.letters.get, []

    async def away(letter_id: str) -> Any:
        asked.append(letter_id)
        if len(asked) > 1:
            raise BrokerUnavailableError("The file is locked. Nothing was changed.")
        return await real(letter_id)

    monkeypatch.setattr(app.backend.letters, "get", away)
    with pytest.raises(BrokerUnavailableError):
        await api.get(EXPORT, Role.OPERATOR)

    assert ["BrokerUnavailableError"] == [each["error_type"] for each in api.named("api.failed")]
