"""Letters over HTTP: lists, pages, bodies as downloads, review, and what a role does not see."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from redrive.core.access import RedactRule, Role
from redrive.core.letters.selection import Selection
from redrive.core.message import Properties
from redrive.errors import BrokerUnavailableError
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.samples import QUEUE, letter, message
from tests.web.conftest import DIED_AT, Api, code, put_letters

NAMES = ["a/b", "a b", "a+b", "a%2Fb", "q?x=1", "orders/../../api/overview", "#top", "naïve-Ω", "😀", "x;y", ".", ".."]
MARKUP = [
    "<img src=x onerror=alert(1)>",
    '"onmouseover="alert(1)',
    "</script><script>alert(1)</script>",
    "\r\nSet-Cookie: a=b",
    "\u2028;alert(1)",
]


async def test_a_walk_sees_every_letter_once(api: Api, app: Redrive) -> None:
    ids = await put_letters(app, 7)

    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await api.get("/api/v1/letters", params={"limit": 3, **cursor})).json()
        seen += [each["id"] for each in page["letters"]]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}

    assert ids == seen


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=junk", "since=yesterday", "state=dead"])
async def test_a_page_that_cannot_be_is_refused(api: Api, query: str) -> None:
    assert 422 == code(await api.get(f"/api/v1/letters?{query}"))[0]


async def test_filters_and_parameters_hold_together(api: Api, app: Redrive) -> None:
    await put_letters(app, 2)
    await put_letters(app, 1, first=9, message=message("m-9", tenant="null"))

    async def found(**query: str) -> list[str]:
        return [each["id"] for each in (await api.get("/api/v1/letters", params=query)).json()["letters"]]

    assert ["dl_0009"] == await found(tenant="null")
    assert ["dl_0009"] == await found(filter="tenant:null", queue=QUEUE)
    assert [] == await found(filter="tenant:null", queue="refunds")
    assert 422 == (await api.get("/api/v1/letters", params={"filter": "nobody:knows"})).status_code


@pytest.mark.parametrize("name", NAMES)
async def test_every_name_reaches_its_queue_and_no_other(api: Api, app: Redrive, name: str) -> None:
    """Case NM-01: in a path one segment, in a query a value."""
    from redrive.web.admin.names import encoded

    for queue in {*NAMES, name}:
        await app.publish(queue, {})
    await app.backend.letters.put([letter(f"dl-{at}", died_at=DIED_AT, queue=each) for at, each in enumerate(NAMES)])

    segment = encoded(name).replace(".", "%2E") if set(name) == {"."} else encoded(name)
    listed = (await api.get("/api/v1/letters", params={"queue": name})).json()["letters"]
    status, document = await asked(api, f"/api/v1/queues/{segment}")

    assert [name] == [each["queue"] for each in listed]
    assert (200, name) == (status, document["queue"])


async def asked(api: Api, raw_path: str) -> tuple[int, Any]:
    """As it is on the wire: clients and their URL libraries make `..` shorter paths."""
    found: dict[str, Any] = {"body": b""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        found["status"] = event.get("status", found.get("status"))
        found["body"] += event.get("body", b"")

    authorization = f"Bearer {api.secrets[Role.VIEWER]}".encode()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/not/looked/at",
        "raw_path": raw_path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"authorization", authorization)],
        "client": ("192.0.2.1", 1),
    }
    await api.api(scope, receive, send)
    return found["status"], json.loads(found["body"])


@pytest.mark.parametrize("raw", ["/api/v1/queues/%ff", "/api/v1/queues/%00", "/api/v1/queues/" + "a" * 1_001])
async def test_a_segment_that_is_no_name_is_refused(api: Api, raw: str) -> None:
    assert (await asked(api, raw))[0] in (400, 422)


@pytest.mark.parametrize("text", MARKUP)
async def test_hostile_text_is_data(api: Api, app: Redrive, text: str) -> None:
    """Case BR-02: in every field; no answer is a page, and none carries it in a header."""
    body = json.dumps({"text": text}).encode()
    hostile = message("m-1", body=body, key=text, tenant=text, headers={text.strip() or "x": text})
    await app.backend.letters.put([letter("dl_1", died_at=DIED_AT, queue=text, message=hostile)])

    answers = [
        await api.get("/api/v1/letters", params={"queue": text, "text": text}),
        await api.get("/api/v1/letters", params={"queue": text}),
        await api.get("/api/v1/letters/dl_1"),
        await api.get("/api/v1/letters/dl_1/body"),
        await api.get("/api/v1/letters", params={"cursor": text}),
        await api.post("/api/v1/jobs/plan", {"selection": {"queue": f"{text}?"}}, role=Role.VIEWER),
        await api.post("/api/v1/letters/review", {"selection": {"tenant": text}, "note": text}),
    ]

    for answer in answers:
        assert answer.headers["content-type"] in (
            "application/json",
            "application/problem+json",
            "application/octet-stream",
        )
        assert not any(text in value or "alert" in value for value in answer.headers.values())
    detail = answers[2].json()
    assert (text, text, {text.strip() or "x": text}) == (
        detail["queue"],
        detail["message"]["tenant"],
        detail["message"]["headers"],
    )
    assert body == answers[3].content


async def test_a_body_is_a_download_of_the_exact_bytes(api: Api, app: Redrive) -> None:
    body = bytes(range(256))
    odd = message("m-1", body=body, content_type="text/html")
    await app.backend.letters.put([letter('dl_"1"\n', died_at=DIED_AT, message=odd)])

    answer = await api.get("/api/v1/letters/dl_%221%22%0A/body")

    assert body == answer.content
    assert "application/octet-stream" == answer.headers["content-type"]
    assert 'attachment; filename="dl__1__.bin"' == answer.headers["content-disposition"]


async def test_a_long_body_is_left_out_of_the_document(api: Api, app: Redrive) -> None:
    long = message("m-1", body=b"x" * 300_000)
    await app.backend.letters.put([letter("dl_1", died_at=DIED_AT, message=long)])

    shown = (await api.get("/api/v1/letters/dl_1")).json()["message"]

    assert (None, True, 300_000) == (shown["body"], shown["is_body_left_out"], shown["body_bytes"])
    assert 300_000 == len((await api.get("/api/v1/letters/dl_1/body")).content)


async def test_reviews_are_audited_and_a_repeat_changes_nothing(api: Api, app: Redrive) -> None:
    [first, second] = await put_letters(app, 2)
    ask = {"selection": {"ids": [first, second]}, "note": "seen"}

    done = [
        (await api.post(f"/api/v1/letters/{verb}", ask)).json() for verb in ("review", "review", "close", "restore")
    ]
    audit = (await api.get(f"/api/v1/letters/{first}")).json()["audit"]

    assert [2, 0, 2, 2] == [each["changed"] for each in done]
    assert [("operator-ann", "seen")] * 3 == [(entry["actor"], entry["note"]) for entry in audit]
    assert 4 == len(api.named("api.written"))


async def test_nothing_selected_is_refused_unless_all_is_said(api: Api, app: Redrive) -> None:
    await put_letters(app, 2)

    assert (422, "invalid") == code(await api.post("/api/v1/letters/close", {}))
    assert (422, "invalid") == code(await api.post("/api/v1/letters/close", {"selection": {}}))
    assert 2 == (await api.post("/api/v1/letters/close", {"all": True})).json()["changed"]


async def test_a_group_is_acknowledged_and_ignored(api: Api, app: Redrive) -> None:
    await put_letters(app, 3)
    [group] = (await api.get("/api/v1/groups")).json()["groups"]
    path = f"/api/v1/groups/{group['group']}"

    taken = await api.ask("PATCH", path, Role.OPERATOR, json={"to": "acknowledged", "assignee": "ann"})
    refused = await api.ask("PATCH", path, Role.OPERATOR, json={"to": "resolved", "ignored": {"more": 3}})
    ignored = await api.ask("PATCH", path, Role.OPERATOR, json={"to": "ignored", "ignored": {"more": 3}})
    again = await api.ask("PATCH", path, Role.OPERATOR, json={"to": "ignored"})

    assert ("acknowledged", "ann", 3) == (taken.json()["state"], taken.json()["assignee"], taken.json()["waiting"])
    assert (422, "invalid") == code(refused)
    assert 3 == ignored.json()["ignored"]["more"]
    assert (409, "illegal_transition") == code(again)


async def test_limits_are_set_shown_and_reset(api: Api) -> None:
    path = f"/api/v1/queues/{QUEUE}/limits"

    put = await api.ask("PUT", path, Role.OPERATOR, json={"batch": 5, "rates": {"acme": "10/min"}})
    shown = await api.get(path)
    wrong = await api.ask("PUT", path, Role.OPERATOR, json={"rates": {"acme": "often"}})
    await api.ask("DELETE", path, Role.OPERATOR)

    assert (200, 5, "operator-ann") == (put.status_code, shown.json()["batch"], shown.json()["actor"])
    assert 422 == wrong.status_code
    assert None is (await api.get(path)).json()["batch"]


# ---------------------------------------------------------------------------------------------------- away, hidden


async def test_a_store_that_is_away_is_503_with_a_time(api: Api, app: Redrive) -> None:
    class Away:
        def __getattr__(self, name: str) -> Any:
            async def ask(*given: Any, **named: Any) -> Any:
                raise BrokerUnavailableError("The file is locked. Nothing was changed.")

            return ask

    app._backend = replace(app.backend, letters=Away(), jobs=Away())
    answers = [
        await api.get("/api/v1/letters"),
        await api.get("/api/v1/jobs"),
        await api.post("/api/v1/jobs", {"all": True}, headers={"idempotency-key": '"k"'}),
    ]

    assert [(503, "broker_unavailable")] * 3 == [code(answer) for answer in answers]
    assert ["5"] * 3 == [answer.headers["retry-after"] for answer in answers]


async def test_before_the_app_is_open_everything_is_503(api: Api, app: Redrive) -> None:
    backend, app._backend = app._backend, None
    answer = await api.get("/api/v1/letters")
    app._backend = backend

    assert (503, "starting") == code(answer)


@pytest.mark.parametrize(
    "redact",
    [
        (
            RedactRule(type="pay.*", role=Role.VIEWER, fields=("payload.card.no", "headers.Authorization")),
            RedactRule(type="pay.*", role=Role.OPERATOR, fields=("payload.*.pin",)),
        )
    ],
)
async def test_what_a_role_may_not_see_is_hidden_everywhere(api: Api, app: Redrive) -> None:
    body = {"card": {"no": "4111", "pin": "99"}, "n": 1}
    paid = message(
        "m-1",
        body=json.dumps(body).encode(),
        headers={"authorization": "Basic c2VjcmV0", "x": "y"},
        properties=Properties(type="pay.done"),
    )
    odd = message("m-2", body=b"no JSON 4111", properties=Properties(type="pay.done"))
    await app.backend.letters.put([letter(f"dl_{m.id}", died_at=DIED_AT, message=m) for m in (paid, odd)])

    async def seen(role: Role, name: str) -> tuple[str, str]:
        shown = (await api.get(f"/api/v1/letters/{name}", role)).text
        return shown, (await api.get(f"/api/v1/letters/{name}/body", role)).text

    for text in await seen(Role.VIEWER, "dl_m-1"):
        assert "[redacted]" in text
        assert not [secret for secret in ("4111", "99", "c2VjcmV0") if secret in text]
    for text in await seen(Role.OPERATOR, "dl_m-1"):
        assert "4111" in text
        assert '"99"' not in text.replace("\\", "")
    assert body == json.loads((await seen(Role.ADMIN, "dl_m-1"))[1])
    assert [] == [text for text in await seen(Role.VIEWER, "dl_m-2") if "4111" in text]
    assert body == json.loads(next(iter([each async for each in whole(app)])).message.body)


def whole(app: Redrive) -> Any:
    return Service(app).whole(Selection(ids=("dl_m-1",)))
