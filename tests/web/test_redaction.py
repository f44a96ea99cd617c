"""What a role may not see it sees nowhere: bodies, headers, errors, lists, groups, jobs, diffs, refusals, exports."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from redrive.core.access import REDACTED, RedactRule, Role, Veil
from redrive.core.letters.selection import Selection
from redrive.core.message import Properties
from redrive.core.settlement import Reason
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE, attempt, letter, message
from tests.web.conftest import DIED_AT, Api, code
from tests.web.test_jobs import ended

CARD, NAME, PIN, AUTH, MAIL = "4111111111111111", "Ann O'Neill", 73, "Basic c2VjcmV0", "ann@example.org"
SECRETS = (CARD, "Neill", AUTH, MAIL)
RULES = (
    RedactRule(type="pay.*", fields=("payload.card", "payload/by.name", "headers.Authorization")),
    RedactRule(patterns=(r"[a-z.]+@[a-z.]+",)),
)
BODY = json.dumps({"card": {"no": int(CARD), "pin": PIN}, "by.name": NAME, "mail": MAIL, "n": 1}).encode()
TEXT = f"card {CARD} of {NAME!r} declined for {MAIL}, pin {PIN} wrong, {AUTH}"


def paid(name: str = "dl_1") -> Any:
    return letter(
        name,
        died_at=DIED_AT,
        message=message(
            f"m-{name}",
            body=BODY,
            headers={"authorization": AUTH, "to": MAIL},
            properties=Properties(type="pay.done", reply_to=MAIL),
        ),
        reason=Reason(code="VALIDATION_FAILED", text=TEXT),
        group_title=f"ValueError: {TEXT}",
        history=(attempt(error_text=TEXT, traceback=f"Traceback\n  charge({NAME!r}, {CARD})\nValueError: {TEXT}\n"),),
    )


@pytest.fixture
def redact() -> tuple[RedactRule, ...]:
    return RULES


def leaked(text: str) -> Iterator[str]:
    for secret in SECRETS:
        if secret in text or json.dumps(secret)[1:-1] in text:
            yield secret
    if f"pin {PIN}" in text or f'"pin": {PIN}' in text:
        yield "pin"


PATHS = (
    "/api/v1/letters",
    "/api/v1/letters?filter=type:pay.done",
    "/api/v1/letters/dl_1",
    "/api/v1/letters/dl_1/body",
)


@pytest.mark.parametrize("path", PATHS)
async def test_a_letter_is_shown_without_what_is_hidden(api: Api, app: Redrive, path: str) -> None:
    await app.backend.letters.put([paid()])

    viewer, operator = (await api.get(path)).text, (await api.get(path, Role.OPERATOR)).text

    assert [] == list(leaked(viewer))
    assert REDACTED in viewer
    assert CARD in operator
    assert REDACTED not in operator


async def test_a_letter_that_is_gone_meanwhile_is_not_listed(
    api: Api, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.backend.letters.put([paid(), letter("dl_2", died_at=DIED_AT + 1)])
    service, found = Service(app), Service.letters

    async def found_and_removed(self: Service, *given: Any, **named: Any) -> Any:
        page = await found(self, *given, **named)
        await service.remove(Selection(ids=("dl_1",)), actor="ann")
        return page

    monkeypatch.setattr(Service, "letters", found_and_removed)
    answer = await api.get("/api/v1/letters")

    assert ["dl_2"] == [each["id"] for each in answer.json()["letters"]]
    assert [] == list(leaked(answer.text))


async def test_what_is_not_hidden_stays_readable(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid(), letter("dl_2", died_at=DIED_AT + 1)])

    shown = (await api.get("/api/v1/letters/dl_1")).json()
    other = (await api.get("/api/v1/letters/dl_2")).json()
    body = json.loads(shown["message"]["body"])

    assert {"card": REDACTED, "by.name": REDACTED, "mail": REDACTED, "n": 1} == body
    assert {"authorization": REDACTED, "to": REDACTED} == shown["message"]["headers"]
    assert f"card {REDACTED} of '{REDACTED}' declined" in shown["reason_text"].replace('"', "'")
    assert ("dl_1", "fp-1", QUEUE) == (shown["id"], shown["group"], shown["queue"])
    assert "Traceback\n" in shown["history"][0]["traceback"]
    assert (True, True) == (shown["message"]["is_redacted"], other["message"]["is_redacted"])
    assert '{"n": 1}' == other["message"]["body"]


async def test_the_rules_are_those_of_the_role_and_the_type(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid(), letter("dl_2", died_at=DIED_AT + 1, reason=Reason(code="X", text=TEXT))])

    listed = {each["id"]: each["reason_text"] for each in (await api.get("/api/v1/letters")).json()["letters"]}

    assert CARD in listed["dl_2"]  # of another type: only the pattern holds
    assert MAIL not in listed["dl_2"]
    assert TEXT == (await api.get("/api/v1/letters/dl_2", Role.ADMIN)).json()["reason_text"]


async def test_groups_and_counts_follow_the_patterns(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid()])
    [group] = (await api.get("/api/v1/groups")).json()["groups"]
    one = await api.get(f"/api/v1/groups/{group['group']}")
    counts = await api.get("/api/v1/stats")

    for text in (json.dumps(group), one.text, counts.text):
        assert MAIL not in text
        assert "ValueError" in text
    assert MAIL in (await api.get("/api/v1/groups", Role.OPERATOR)).text


async def test_keys_that_are_data_follow_the_patterns_and_none_is_lost(api: Api, app: Redrive) -> None:
    tenants = (MAIL, "bob@example.org", "acme")
    await app.backend.letters.put(
        [letter(f"dl_{n}", died_at=DIED_AT, message=message(f"m-{n}", tenant=name)) for n, name in enumerate(tenants)]
    )

    [group] = (await api.get("/api/v1/groups")).json()["groups"]
    stats = (await api.get("/api/v1/stats")).json()

    assert {REDACTED: 1, f"{REDACTED} 2": 1, "acme": 1} == stats["by_tenant"] == group["top_tenants"]
    assert {"pending": 3} == stats["by_state"]


async def test_limits_pauses_and_what_is_set_aside_follow_the_patterns(api: Api) -> None:
    queue, note = f"/api/v1/queues/{QUEUE}", f"for {MAIL}"
    await api.post(f"{queue}/quarantine", {"tenants": [MAIL], "note": note})
    await api.ask("PUT", f"{queue}/limits", Role.OPERATOR, json={"rates": {MAIL: "10/min"}, "note": note})
    done = await api.post(f"{queue}/pause", {"note": note})
    paths = ("/api/v1/limits", f"{queue}/limits", "/api/v1/queues", queue)

    seen = [(await api.get(path)).text for path in paths]

    assert MAIL in done.text
    assert [] == [path for path, text in zip(paths, seen, strict=True) if MAIL in text or REDACTED not in text]
    assert {REDACTED: "10/min"} == json.loads(seen[1])["rates"]


async def test_the_items_of_a_job_follow_the_patterns(api: Api, app: Redrive, clock: FakeClock) -> None:
    await app.backend.letters.put([letter("dl_1", died_at=DIED_AT)])
    edit = [{"op": "remove", "path": f"/{MAIL}"}]
    ask = {"selection": {"ids": ["dl_1"]}, "options": {"edit": edit}}
    job = (await api.post("/api/v1/jobs", ask)).json()["job"]["id"]
    await ended(api, job, clock)

    operator, viewer = [
        (await api.get(f"/api/v1/jobs/{job}/items", role)).text for role in (Role.OPERATOR, Role.VIEWER)
    ]

    assert MAIL in operator
    assert MAIL not in viewer


@pytest.mark.parametrize("redact", [(RedactRule(fields=("error",)),)])
async def test_what_was_made_of_errors_can_be_hidden_whole(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid()])

    shown = (await api.get("/api/v1/letters/dl_1")).json()
    [group] = (await api.get("/api/v1/groups")).json()["groups"]
    [listed] = (await api.get("/api/v1/letters")).json()["letters"]

    assert [REDACTED] * 5 == [
        shown["reason_text"],
        shown["history"][0]["error_text"],
        shown["history"][0]["traceback"],
        group["title"],
        listed["group_title"],
    ]
    assert BODY.decode() == shown["message"]["body"]


async def test_a_body_that_cannot_be_looked_into_hides_the_texts_about_it(api: Api, app: Redrive) -> None:
    odd = message("m-1", body=f"card={CARD}".encode(), properties=Properties(type="pay.done"))
    await app.backend.letters.put([letter("dl_1", died_at=DIED_AT, message=odd, reason=Reason(code="X", text=TEXT))])

    shown = (await api.get("/api/v1/letters/dl_1")).json()

    assert [REDACTED] * 2 == [shown["reason_text"], shown["message"]["body"]]
    assert CARD not in (await api.get("/api/v1/letters")).text


async def test_of_two_equal_names_none_is_shown(api: Api, app: Redrive) -> None:
    twice = b'{"a": {"card": "' + CARD.encode() + b'"}, "a": 1, "mail": "' + MAIL.encode() + b'", "mail": ""}'
    odd = message("m-1", body=twice, properties=Properties(type="pay.done"))
    plain = message("m-2", body=twice)
    await app.backend.letters.put([letter("dl_1", message=odd), letter("dl_2", message=plain)])

    assert CARD not in (await api.get("/api/v1/letters/dl_1/body")).text
    assert MAIL not in (await api.get("/api/v1/letters/dl_2/body")).text


async def test_a_job_echoes_no_filter_and_no_edit(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid()])
    edit = [{"op": "replace", "path": "/card/no", "value": CARD}]
    ask = {"selection": {"text": MAIL}, "options": {"edit": edit}, "note": f"for {MAIL}"}

    made = await api.post("/api/v1/jobs", ask)
    job = made.json()["job"]["id"]
    seen = [
        (await api.get("/api/v1/jobs")).text,
        (await api.get(f"/api/v1/jobs/{job}")).text,
        (await api.get(f"/api/v1/jobs/{job}/items")).text,
    ]

    assert [] == [secret for text in seen for secret in leaked(text)]
    assert CARD in made.text


@pytest.mark.parametrize("redact", [(RedactRule(patterns=(r"[a-z.]+@[a-z.]+",)),)])
async def test_a_plan_shows_no_diff_of_what_patterns_may_hide(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid()])
    edit = [{"op": "replace", "path": "/mail", "value": ""}]
    ask = {"selection": {"ids": ["dl_1"]}, "options": {"edit": edit}}

    planned = await api.post("/api/v1/jobs/plan", ask, role=Role.VIEWER)

    assert [REDACTED] == planned.json()["edits"][0]["diff"]


@pytest.mark.parametrize("redact", [(RedactRule(type="pay.*", role=Role.OPERATOR, fields=("payload.card",)),)])
@pytest.mark.parametrize("path", ["/api/v1/jobs/plan", "/api/v1/jobs"])
async def test_who_may_not_see_all_of_a_body_cannot_edit_it(api: Api, app: Redrive, path: str) -> None:
    await app.backend.letters.put([paid()])
    right, wrong = ([{"op": "test", "path": "/card/pin", "value": pin}] for pin in (PIN, PIN + 1))
    moved = [{"op": "move", "from": "/card", "path": "/n"}]
    asks = [{"selection": {"ids": ["dl_1"]}, "options": {"edit": edit}} for edit in (right, wrong, moved)]

    refused = [code(await api.post(path, ask)) for ask in asks]

    assert [(403, "forbidden")] * 3 == refused
    assert [] == list(await app.backend.jobs.list())
    assert (await api.post(path, asks[2], role=Role.ADMIN)).is_success


@pytest.mark.parametrize("redact", [(RedactRule(role=Role.OPERATOR, patterns=(r"[a-z.]+@[a-z.]+", "^[0-9]{4}$")),)])
@pytest.mark.parametrize("path", ["/api/v1/jobs/plan", "/api/v1/jobs"])
async def test_an_edit_asks_for_nothing_that_patterns_hide(api: Api, app: Redrive, path: str) -> None:
    """Neither for a value, also written otherwise (1234.0), nor for a name; what is not hidden may be edited."""
    body = json.dumps({"mail": MAIL, "by": {MAIL: 1}, "pin": 1234, "n": 1}).encode()
    await app.backend.letters.put([letter("dl_1", died_at=DIED_AT, message=message("m-1", body=body))])
    edits = [
        {"op": "test", "path": "/mail", "value": MAIL},
        {"op": "test", "path": "", "value": {"mail": MAIL}},
        {"op": "test", "path": "/pin", "value": 1234.0},
        {"op": "remove", "path": f"/by/{MAIL}"},
        {"op": "copy", "from": f"/by/{MAIL}", "path": "/n"},
        {"op": "replace", "path": "/mail", "value": ""},
    ]
    asks = [{"selection": {"ids": ["dl_1"]}, "options": {"edit": [edit]}} for edit in edits]

    *refused, good = [await api.post(path, ask) for ask in asks]

    assert [(403, "forbidden")] * 5 == [code(answer) for answer in refused]
    assert [] == [answer.text for answer in refused if MAIL in answer.text]
    assert good.is_success
    assert (await api.post("/api/v1/jobs/plan", asks[0], role=Role.ADMIN)).is_success


async def test_why_an_edit_did_not_fit_names_nothing_inside_of_what_is_hidden(
    api: Api, app: Redrive, clock: FakeClock
) -> None:
    await app.backend.letters.put([paid()])
    ask = {"selection": {"ids": ["dl_1"]}, "options": {"edit": [{"op": "remove", "path": "/card/ann-s-number/x"}]}}
    job = (await api.post("/api/v1/jobs", ask)).json()["job"]["id"]
    await ended(api, job, clock)
    paths = [f"/api/v1/jobs/{job}", f"/api/v1/jobs/{job}/items", f"/api/v1/jobs/{job}/events"]

    operator, viewer = [[(await api.get(path, role)).text for path in paths] for role in (Role.OPERATOR, Role.VIEWER)]

    assert "ann-s-number" in operator[0]
    assert "ann-s-number" in operator[1]
    assert [] == [text for text in viewer if "ann-s-number" in text]
    assert ["the edit does not fit"] == [each["why"] for each in json.loads(viewer[1])["items"]]


async def test_a_refusal_echoes_nothing(api: Api) -> None:
    answer = await api.get(f"/api/v1/letters/{MAIL}")

    assert 404 == code(answer)[0]
    assert MAIL not in answer.text
    assert MAIL in (await api.get(f"/api/v1/letters/{MAIL}", Role.OPERATOR)).text


@pytest.mark.parametrize("redact", [tuple(replace(rule, role=Role.OPERATOR) for rule in RULES)])
@pytest.mark.parametrize("path", [*PATHS, "/api/v1/letters/export"])
async def test_others_are_answered_while_much_is_redacted(
    api: Api, app: Redrive, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Case: a body of many texts, or a letter that died of many long tracebacks."""
    body = json.dumps({"mail": MAIL, "rest": ["x"] * 30_000}).encode()
    large = replace(paid(), message=replace(paid().message, body=body))
    await app.backend.letters.put([large])
    loop, begun, may_go_on, waited = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), []
    real = Veil.text

    def slow(self: Veil, *given: Any) -> str:
        if not waited:
            loop.call_soon_threadsafe(begun.set)
            waited.append(may_go_on.wait(timeout=5))
        return real(self, *given)

    monkeypatch.setattr(Veil, "text", slow)
    asked = asyncio.create_task(api.get(path, Role.OPERATOR))
    await begun.wait()
    other = await api.get("/api/v1/me", Role.ADMIN)
    may_go_on.set()

    assert 200 == other.status_code
    assert MAIL not in (await asked).text
    assert [True] == waited


@pytest.mark.parametrize("path", ["/api/v1/letters", "/api/v1/stats"])
async def test_who_may_not_see_a_header_cannot_ask_for_its_value(api: Api, app: Redrive, path: str) -> None:
    await app.backend.letters.put([paid()])
    line = {"filter": f'header:"AUTHORIZATION={AUTH}"'}

    assert (403, "forbidden") == code(await api.get(path, params=line))
    assert 200 == (await api.get(path, Role.OPERATOR, params=line)).status_code
    assert 200 == (await api.get(path, params={"filter": "header:to=x"})).status_code


async def test_a_job_shows_no_value_of_a_hidden_header(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid()])
    made = await api.post("/api/v1/jobs", {"selection": {"filter": f'header:"AUTHORIZATION={AUTH}" header:x=kept'}})
    job = f"/api/v1/jobs/{made.json()['job']['id']}"
    await api.post(f"{job}/abort")

    seen = [(await api.get(path)).text for path in (job, "/api/v1/jobs", f"{job}/events")]

    assert AUTH in made.text
    assert [] == [secret for text in seen for secret in leaked(text)]
    assert [["AUTHORIZATION", REDACTED], ["x", "kept"]] == json.loads(seen[0])["job"]["selection"]["headers"]


@pytest.mark.parametrize(
    "redact", [tuple(RedactRule(type=r.type, role=Role.OPERATOR, fields=r.fields, patterns=r.patterns) for r in RULES)]
)
async def test_exports_archives_and_what_is_collectable_follow_the_rules(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([paid()])
    await app.publish(
        "old.dead",
        json.loads(BODY),
        type="pay.done",
        headers={"x-exception-message": TEXT, "x-exception-stacktrace": TEXT, "Authorization": AUTH},
    )
    found = await api.get("/api/v1/queues/old.dead/collectable", Role.OPERATOR)
    export = await api.get("/api/v1/letters/export", Role.OPERATOR)
    prune = {"all": True, "archive": True}
    file = (await api.post("/api/v1/letters/prune", prune, role=Role.ADMIN)).json()["archive"]
    archive = await api.get(f"/api/v1/archives/{file}", Role.OPERATOR)

    assert [] == [secret for answer in (found, export, archive) for secret in leaked(answer.text)]
    assert REDACTED in found.json()["letters"][0]["reason_text"]
    assert ["dl_1"] * 2 == [json.loads(answer.content)["id"] for answer in (export, archive)]
    assert [] == [line for line in (await api.get(f"/api/v1/archives/{file}", Role.ADMIN)).text if REDACTED in line]
