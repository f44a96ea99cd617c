"""Idempotency-Key: a POST that is sent twice is carried out once, and both senders read the same answer.

*Source*: draft-ietf-httpapi-idempotency-key-header: a quoted string; the same key with another request is 422, with one
that is still being carried out 409; afterwards the first answer is given again, refusals included, for a day.

Whose turn it is says a claim of the app's claim store, in a queue of its own: one (queue, key) that only one can hold,
with a lease, a fencing token and the digest of the request. So it holds for all servers of one store, and over
restarts. The answer is kept in the request store, before the claim ends. Killed right there, what is true?

- before the claim: nothing has happened.
- with the claim: the request is carried out or not, or half; once the lease is over the next one with this key carries
  it out. It finds what is done already: redrive jobs and messages carry the key, all else finds nothing left to do.
- with the answer kept, before the claim ends: the next one finds the answer.

A failure of ours (5xx), a request that is cut off, and an answer that is too long to keep give the claim back. Where
claims are in Redis and letters in a file of this host, another host's answer is not here: then that is said (409).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from redrive.core.audit import Answer, RequestStore
from redrive.core.idempotency import Acquired, ClaimRef, ClaimState, InProgress
from redrive.core.ports import ClaimEnd, Registration
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.runtime.app import Redrive
from redrive.service import runner_name
from redrive.web.admin.problems import refuse

KEPT_MS: Final[Millis] = 86_400_000
QUEUE: Final = "redrive.api"
"""Of the claims; no queue of any broker."""
LEASE_MS: Final[Millis] = 30_000
RENEW_MS: Final[Millis] = 10_000
MAX_KEPT_BYTES: Final = 1_048_576
MAX_KEY_CHARS: Final = 255
KEPT_HEADERS: Final = ("content-type", "location", "request-id")

_QUOTED: Final = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_TOO_LONG: Final = f"The Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters."

Carry = Callable[[], Awaitable[Response]]


def parse_key(header: str) -> str:
    """What is within the quotes. Raises `Refused` for a header that is no structured-field string."""
    found = _QUOTED.fullmatch(header.strip())
    if found is None:
        raise refuse("malformed", 'The Idempotency-Key must be a quoted string: Idempotency-Key: "8e03978e-40d5".')
    key = re.sub(r"\\(.)", r"\1", found[1])
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise refuse("malformed", _TOO_LONG)
    return key


def request_key(actor: str, key: str) -> str:
    """The key as stores keep it: of one actor, so that nobody gets another's answer by chance."""
    return "api-" + hashlib.sha256(json.dumps([actor, key]).encode()).hexdigest()[:40]


def fingerprint(method: str, path: str, body: bytes) -> str:
    """What makes two requests the same one."""
    return hashlib.sha256(json.dumps([method, path]).encode() + b"\n" + body).hexdigest()


@dataclass(frozen=True, slots=True)
class Once:
    """Carries requests out once for each key."""

    app: Redrive
    answers: RequestStore

    async def run(self, key: str, digest: str, carry_out: Carry) -> Response:
        """The answer: of this request, or of the first with this key. Raises `Refused` (409, 422), and `RedriveError`
        where the store is away: nothing was carried out.
        """
        held = await self._claim(key, digest)
        # A claim may be new and the answer there: its first holder was killed between keeping it and the end.
        known = await self.answers.answer(key, now=self.app.clock.now())
        if known is not None:
            if held is not None:
                await self._end(held, ClaimState.PROCESSED)
            return Response(known.body, known.status, dict(known.headers))
        if held is None:
            raise refuse("answer_elsewhere")
        state = ClaimState.RECEIVED
        try:
            async with self._renewed(held):
                response = await carry_out()
            if await self._is_kept(key, response):
                state = ClaimState.PROCESSED
        finally:
            # Where this fails the lease runs out, and the next one is told 409 until then.
            with contextlib.suppress(RedriveError):
                await self._end(held, state)
        return response

    async def _claim(self, key: str, digest: str) -> ClaimRef | None:
        """The claim; None where it was carried out before."""
        claims, now = self.app.backend.claims, self.app.clock.now()
        given = Registration(queue=QUEUE, key=key, digest=digest, expires_at=now + KEPT_MS)
        [registered] = await claims.register([given])
        if registered.conflict:
            raise refuse("key_reused")
        [verdict] = await claims.claim([(QUEUE, key)], lease_ms=LEASE_MS, owner=runner_name())
        match verdict:
            case Acquired():
                return verdict.ref
            case InProgress():
                raise refuse("key_in_use", headers={"retry-after": "1"})
            case _:
                return None

    async def _is_kept(self, key: str, response: Response) -> bool:
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or len(response.body) > MAX_KEPT_BYTES:
            return False
        headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        answer = Answer(status=response.status_code, body=bytes(response.body), headers=headers)
        try:
            await self.answers.keep(key, answer, expires_at=self.app.clock.now() + KEPT_MS)
        except RedriveError:
            return False  # it is done, and whoever asked is told so; a repeat finds nothing left to do
        return True

    async def _end(self, held: ClaimRef, state: ClaimState) -> None:
        expires_at = self.app.clock.now() + KEPT_MS
        await self.app.backend.claims.finish([ClaimEnd(ref=held, state=state, expires_at=expires_at)])

    @contextlib.asynccontextmanager
    async def _renewed(self, held: ClaimRef) -> AsyncIterator[None]:
        """The lease is renewed meanwhile."""
        renewing = asyncio.create_task(self._renew(held))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})

    async def _renew(self, held: ClaimRef) -> None:
        while True:
            await self.app.clock.sleep(RENEW_MS)
            with contextlib.suppress(RedriveError):
                await asyncio.to_thread(self.app.backend.claims.renew, [held], lease_ms=LEASE_MS)
