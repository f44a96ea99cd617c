"""Every role on every endpoint, from the table of operations itself."""

from __future__ import annotations

import re

import pytest

from redrive.core.access import Role
from redrive.testing.samples import QUEUE
from redrive.web.admin.app import MAX_BODY_BYTES, OPENAPI
from redrive.web.admin.openapi import document
from redrive.web.admin.operations import OPERATIONS, Operation
from tests.web.conftest import Api, code

MORE = ("PUT", "PATCH", "DELETE")
ROWS = [pytest.param(row, id=f"{row.method} {row.path}") for row in OPERATIONS]


@pytest.fixture
def url() -> str:
    return "memory://"


def path(row: Operation) -> str:
    return row.path.format(
        letter_id="dl_none", job_id="rd_none", group="none", queue=QUEUE, archive="none.jsonl", token="nobody"
    )


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("role", [None, *Role])
async def test_who_may_do_what(api: Api, row: Operation, role: Role | None) -> None:
    answer = await api.ask(row.method, path(row), role)

    if role is None:
        assert (401, "unauthenticated") == code(answer)
        assert answer.headers["www-authenticate"].startswith("Bearer")
    elif not role.covers(row.role):
        assert (403, "forbidden") == code(answer)
    else:
        assert answer.status_code not in (401, 403, 405)
        assert answer.status_code < 500
    is_told = row.is_audited and role is not None and role.covers(row.role)
    assert [row.name] * is_told == [each["operation"] for each in api.named("api.written")]


@pytest.mark.parametrize("row", ROWS)
async def test_every_answer_is_safe_to_open(api: Api, row: Operation) -> None:
    for role in (None, Role.ADMIN):
        headers = (await api.ask(row.method, path(row), role)).headers

        assert "nosniff" == headers["x-content-type-options"]
        assert "no-store" == headers["cache-control"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "text/html" not in headers.get("content-type", "")


@pytest.mark.parametrize("row", [row for row in ROWS if row.values[0].body is not None])
async def test_a_body_that_is_none_is_refused_for_what_it_is(api: Api, row: pytest.param) -> None:
    async def sent(content: bytes, kind: str = "application/json") -> tuple[int, str]:
        return code(await api.ask(row.method, path(row), content=content, headers={"content-type": kind}))

    assert (400, "malformed") == await sent(b"{")
    assert (400, "malformed") == await sent(b"\xff\xfe")
    assert (400, "malformed") == await sent(b"[" * 100_000)
    assert (422, "invalid") == await sent(b"[]")
    assert (422, "invalid") == await sent(b'{"nobody knows this": 1}')
    assert (415, "unsupported_media_type") == await sent(b"a=1", "application/x-www-form-urlencoded")
    assert (415, "unsupported_media_type") == await sent(b"{}", "text/plain")
    assert (413, "body_too_large") == await sent(b" " * (MAX_BODY_BYTES + 1))
    assert [] == api.named("api.written")


@pytest.mark.parametrize("row", ROWS)
async def test_a_parameter_nobody_knows_is_refused(api: Api, row: Operation) -> None:
    assert (422, "invalid") == code(await api.ask(row.method, path(row) + "?nobody=1"))
    assert (400, "malformed") == code(await api.ask(row.method, path(row) + "?a=%ff"))


@pytest.mark.parametrize("row", ROWS)
async def test_another_method_is_told_which_there_are(api: Api, row: Operation) -> None:
    answer = await api.ask("TRACE", path(row))

    assert (405, "method_not_allowed") == code(answer)
    assert row.method in answer.headers["allow"]


@pytest.mark.parametrize("where", sorted({OPENAPI, *(row.path for row in OPERATIONS)}))
async def test_every_path_says_which_methods_it_has(api: Api, where: str) -> None:
    """Those of the document, at least: "letters/review" could be a letter, too. Nobody needs a token for that."""
    documented = document()["paths"].get(where, {"get": {}})
    here = re.sub(r"\{\w+\}", "a%2Fb", where)

    options, head, trace = [await api.ask(method, here, None) for method in ("OPTIONS", "HEAD", "TRACE")]

    [allowed] = {answer.headers["allow"] for answer in (options, head, trace)}
    assert {"OPTIONS", *map(str.upper, documented)} <= set(allowed.split(", ")) <= {"OPTIONS", "GET", "POST", *MORE}
    assert (204, b"") == (options.status_code, options.content)
    assert (405, (405, "method_not_allowed")) == (head.status_code, code(trace))
    assert "HEAD" not in allowed
    assert [] == api.named("api.written")


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD"])
async def test_of_a_path_that_is_none_nobody_says_methods(api: Api, method: str) -> None:
    answer = await api.ask(method, "/api/v1/nothing")

    assert (404, "application/problem+json") == (answer.status_code, answer.headers["content-type"])


@pytest.mark.parametrize("where", ["/", "/api/v1", "/api/v1/", "/api/v1/letters/", "/api/v1/letters/a/b/c", "/admin"])
async def test_a_path_that_is_none_is_a_problem(api: Api, where: str) -> None:
    assert (404, "no_such_path") == code(await api.get(where))
