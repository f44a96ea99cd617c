"""AdminApi: the ASGI app. One request after the other passes: path, method, token, role, sizes, shape, key, operation.

Every answer forbids caches, sniffing and running anything: what a message holds is data, whoever shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from redrive.core.access import Role
from redrive.core.audit import Write
from redrive.errors import RedriveError
from redrive.runtime.app import AsgiApp, Redrive
from redrive.web.admin.auth import Guard, Principal, guard_of
from redrive.web.admin.call import Call
from redrive.web.admin.keys import Once, fingerprint, parse_key, request_key
from redrive.web.admin.names import decoded, own_path
from redrive.web.admin.openapi import document
from redrive.web.admin.operations import JSON, OPERATIONS, Operation
from redrive.web.admin.passes import Passes
from redrive.web.admin.problems import Refused, problem_of, refuse
from redrive.web.admin.requests import body_of, query_of
from redrive.web.admin.runners import Runners
from redrive.web.admin.shown import problem_as_shown
from redrive.web.admin.streams import LINES, Streams
from redrive.web.admin.writes import Writes

MAX_BODY_BYTES: Final = 1_048_576
"""Of one request."""
OPENAPI: Final = "/openapi.json"
ROOTS: Final = ("/api/v1/", "/admin/", OPENAPI)
"""Where its paths begin."""

HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "referrer-policy": "no-referrer",
}


def admin_app(app: Redrive, *, guard: Guard | None = None, management: str | None = None) -> AdminApi:
    """An ASGI app to be served as it is, or mounted in Starlette or FastAPI under any path; the caller opens `app`.

    `management`: URL of a RabbitMQ's management API, None for the usual one.
    Without a `guard` it is that of the settings (tokens of `redrive token`, or `admin_jwt`). Raises
    `ConfigurationError` where there is none: it is never open to everybody.
    """
    return AdminApi(app, guard_of(app)[0] if guard is None else guard, management=management)


class AdminApi:
    """One app's admin API. `close` ends its streams and lets go of the redrive jobs it carries out."""

    def __init__(self, app: Redrive, guard: Guard, *, management: str | None = None) -> None:
        self._management = management
        self._app = app
        self._guard = guard
        self._writes = Writes(app)
        self._runners = Runners(app)
        self._streams = Streams(app.clock)
        self._passes = Passes(app.clock)

    async def close(self) -> None:
        """End what is open. What a job has not sent yet the next runner sends."""
        self._streams.is_stopping = True
        await self._runners.stop()

    def owns(self, scope: Scope) -> bool:
        """Whether a request is for this app, where it stands beside others."""
        return scope["type"] == "http" and own_path(scope).startswith(ROOTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            # Nobody is left to answer. Nothing was begun, for the body had not come; of lines that are read bit by bit
            # what came is done, and the record of that write stays begun.
            return
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        try:
            await response(scope, receive, send)
        except Exception as error:
            # Lines that break off: the connection does, too, so that nobody takes them for all.
            self._app.events.emit("api.failed", operation="stream", error_type=type(error).__name__)
            raise

    async def _answer(self, request: Request) -> Response:
        try:
            path = own_path(request.scope)
            methods = _methods(path)
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"allow": _allow(methods)})
            if request.method not in methods:
                raise refuse("method_not_allowed", headers={"allow": _allow(methods)})  # noqa: TRY301
            if path == OPENAPI:
                return JSONResponse(document(root=request.scope.get("root_path", "")))
            row, names = _routed(path, request.method)
            principal = await self._allowed(request, row.role)
            return await self._carried_out(request, row, (principal, names))
        except Refused as refused:
            return refused.problem.response()
        except RedriveError as error:
            return problem_of(error).response()
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - told as an event; whoever asked gets a problem document
            self._app.events.emit("api.failed", operation=request.method, error_type=type(error).__name__)
            return refuse("internal").problem.response()

    async def _allowed(self, request: Request, role: Role) -> Principal:
        """Who asks. Raises `Refused`."""
        principal = await self._guard.identify(request.headers.get("authorization"), address=_address(request))
        if not principal.role.covers(role):
            raise refuse("forbidden", f"This needs the role {role}; the token has {principal.role}.")
        return principal

    async def _carried_out(self, request: Request, row: Operation, who: tuple[Principal, dict[str, str]]) -> Response:
        principal, names = who
        body = b"" if row.takes_lines else await _read_body(request, row)
        _check_type(request, row, has_body=bool(body))
        given = request.headers.get("idempotency-key") if row.takes_key else None
        key = None if given is None else parse_key(given)
        call = Call(
            app=self._app,
            principal=principal,
            path=names,
            query=query_of(request.scope.get("query_string", b""), row.query),
            body=None if row.body is None else body_of(body, row.body),
            root=request.scope.get("root_path", ""),
            runners=self._runners,
            streams=self._streams,
            passes=self._passes,
            lines=request.stream(),
            request_key=None if key is None else request_key(principal.name, key),
            management=self._management,
            tokens=self._guard.tokens,
            last_event_id=request.headers.get("last-event-id"),
        )
        # What only looks may be done twice; before the app is open there is no store to ask.
        answers = self._app.backend.requests if self._app.is_open else None
        if call.request_key is None or answers is None or not row.is_audited:
            return await self._run(request, row, call)
        digest = fingerprint(row.method, own_path(request.scope), body)
        try:
            return await Once(self._app, answers).run(call.request_key, digest, lambda: self._run(request, row, call))
        except RedriveError as error:
            return problem_of(error).response()

    async def _run(self, request: Request, row: Operation, call: Call) -> Response:
        """Carry it out; a write is kept as begun first, and with its result afterwards."""
        if not row.is_audited:
            return await self._found(row, call)
        write = self._writes.made(call, row.name, _address(request))
        try:
            await self._writes.begin(write)
        except Refused as refused:
            response = refused.problem.response()
        except RedriveError as error:
            response = problem_of(error).response()
        else:
            response = await self._found(row, call)
            response.headers["request-id"] = write.id
            await self._writes.end(write, response)
        self._tell(write, response.status_code)
        return response

    async def _found(self, row: Operation, call: Call) -> Response:
        try:
            found = await row.run(call)
            response = found if isinstance(found, Response) else _json(found, row.status)
        except Refused as refused:
            response = problem_as_shown(call, refused.problem).response()
        except RedriveError as error:
            response = problem_as_shown(call, problem_of(error)).response()
        except OSError as error:
            self._app.events.emit("api.failed", operation=row.name, error_type=type(error).__name__)
            response = refuse("files_unavailable").problem.response()
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - told as an event; whoever asked gets a problem document
            self._app.events.emit("api.failed", operation=row.name, error_type=type(error).__name__)
            response = refuse("internal").problem.response()
        return response

    def _tell(self, begun: Write, status: int) -> None:
        self._app.events.emit(
            "api.written",
            actor=begun.actor,
            role=begun.role,
            operation=begun.operation,
            target=begun.target,
            status=status,
            address=begun.address,
            request_id=begun.id,
        )


def beside(admin: AdminApi, other: AsgiApp) -> AsgiApp:
    """The admin API where its paths are, the other app everywhere else."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await (admin if admin.owns(scope) else other)(scope, receive, send)

    return answer


def _methods(path: str) -> list[str]:
    """What may be asked of a path. Raises `Refused` (404)."""
    found = ["GET"] if path == OPENAPI else list(dict.fromkeys(row.method for row in _fitting(path)))
    if not found:
        raise refuse("no_such_path")
    return found


def _allow(methods: list[str]) -> str:
    return ", ".join([*methods, "OPTIONS"])


def _routed(path: str, method: str) -> tuple[Operation, dict[str, str]]:
    """The row of a path and one of its methods, and the names in the path. Raises `Refused` for one that is none."""
    # A path without names comes first: POST "/letters/review" is that, and no letter called "review".
    row = min((row for row in _fitting(path) if row.method == method), key=lambda row: len(row.names))
    pairs = zip(row.path.split("/"), path.split("/"), strict=True)
    return row, {mine[1:-1]: decoded(theirs) for mine, theirs in pairs if mine.startswith("{")}


def _fitting(path: str) -> list[Operation]:
    steps = path.split("/")
    return [row for row in OPERATIONS if _fits(row.path.split("/"), steps)]


def _fits(mine: list[str], theirs: list[str]) -> bool:
    return len(mine) == len(theirs) and all(
        own == given or (own.startswith("{") and given != "") for own, given in zip(mine, theirs, strict=True)
    )


async def _read_body(request: Request, row: Operation) -> bytes:
    """All of it, or a refusal as soon as it is too much."""
    if row.body is None and row.method == "GET":
        return b""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MAX_BODY_BYTES:
            raise refuse("body_too_large", f"A body has at most {MAX_BODY_BYTES} bytes. Nothing was changed.")
    if found and row.body is None:
        raise refuse("invalid", "This takes no body. Nothing was changed.")
    return bytes(found)


def _check_type(request: Request, row: Operation, *, has_body: bool) -> None:
    """What comes is of the kind the operation takes. Raises `Refused`."""
    headers, wanted = request.headers, LINES if row.takes_lines else JSON
    if row.takes_lines:
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if has_body and not _is_of(wanted, headers):
        raise refuse("unsupported_media_type", f"This takes {wanted}, in UTF-8.", headers={"accept": wanted})


def _is_of(wanted: str, headers: Mapping[str, str]) -> bool:
    """Of this type, in UTF-8 and not packed. A form or plain text, which any page may post, is never taken for it."""
    kind, _, parameters = headers.get("content-type", "").lower().partition(";")
    is_utf8 = parameters.strip().replace('"', "") in ("", "charset=utf-8")
    return kind.strip() == wanted and is_utf8 and headers.get("content-encoding", "identity").lower() == "identity"


def _json(found: Any, status: int) -> Response:
    """ASCII with escapes: lone surrogates and what breaks lines in scripts come through unharmed."""
    return Response(json.dumps(found, allow_nan=False).encode(), status, media_type=JSON)


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""
