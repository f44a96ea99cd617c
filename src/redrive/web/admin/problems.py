"""RFC 9457 problem documents: every refusal of the admin API, from one table.

The last part of `type` is the code. Codes of errors are those of `redrive.errors`; what only HTTP knows is below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from redrive.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidMessageError,
    LeaseLostError,
    MissingExtraError,
    NotFoundError,
    QueueNotFoundError,
    RedriveError,
    SchemaTooNewError,
    StorageCorruptError,
    TransitionError,
    UnsupportedError,
)

PROBLEM_TYPE: Final = "urn:redrive:error:"
"""In front of the code."""
MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 5
"""Told to those who come while the store or the broker is away."""
MAX_DETAIL_CHARS: Final = 1_000

CODES: Final[dict[str, tuple[int, str]]] = {
    "malformed": (400, "The request cannot be read: bad JSON, bad percent-encoding, a header that is none."),
    "unauthenticated": (401, "No token, or one that is not known, is over or was not signed by a known key."),
    "forbidden": (403, "The token is good, and its role does not reach so far."),
    "no_such_path": (404, "Nothing is there. Names in a path are percent-encoded, a slash in one is %2F."),
    "method_not_allowed": (405, "The path has other methods; `Allow` names them."),
    "key_in_use": (409, "The first request with this Idempotency-Key is still being carried out."),
    "answer_elsewhere": (409, "It was carried out, and its answer is kept on another server. Look what it did."),
    "body_too_large": (413, "The body of the request is over its limit. Nothing was changed."),
    "unsupported_media_type": (415, "A body is `application/json`, in UTF-8."),
    "invalid": (422, "A field or parameter is unknown, missing, or holds what it cannot. Nothing was changed."),
    "key_reused": (422, "The Idempotency-Key was given before with another request. Nothing was changed."),
    "too_many_failures": (429, "Too many requests with bad tokens from this address; `Retry-After` says how long."),
    "internal": (500, "A bug. What was to be done may be done or not: look before trying again."),
    "starting": (503, "The app is not open yet: its broker or store is away."),
    "too_many_streams": (503, "So many event streams are open already; ask for the job itself meanwhile."),
    "too_many_passes": (503, "So many queues are being collected already; come again when one is done."),
    "files_unavailable": (503, "A file or folder of this server cannot be read or written. What was done is done."),
    "keys_unavailable": (503, "The keys that tokens are signed with cannot be fetched now."),
}
"""Code to status and meaning, of what no error of `redrive.errors` says."""

STATUS_OF: Final[dict[type[RedriveError], int]] = {
    StorageCorruptError: 503,
    BrokerUnavailableError: 503,
    SchemaTooNewError: 503,
    MissingExtraError: 503,
    NotFoundError: 404,
    QueueNotFoundError: 404,
    TransitionError: 409,
    LeaseLostError: 409,
    UnsupportedError: 409,
    ConfigurationError: 422,
    InvalidMessageError: 422,
}
"""The first that fits, from the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One refusal. `detail` is for a person and holds no secret; `extra` are further members of the document."""

    status: int
    code: str
    detail: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "type": PROBLEM_TYPE + self.code,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail[:MAX_DETAIL_CHARS],
            **self.extra,
        }

    def response(self) -> Response:
        """The answer."""
        retry = {"retry-after": str(RETRY_AFTER_S)} if self.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        body = json.dumps(self.document()).encode()
        return Response(body, self.status, {**retry, **self.headers}, media_type=MEDIA_TYPE)


class Refused(Exception):
    """Ends the handling of a request with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


def refuse(code: str, detail: str = "", *, headers: Mapping[str, str] | None = None, **extra: Any) -> Refused:
    """What to raise for one of `CODES`; without a `detail` its meaning is told."""
    status, meaning = CODES[code]
    return Refused(Problem(status=status, code=code, detail=detail or meaning, extra=extra, headers=headers or {}))


def problem_of(error: RedriveError) -> Problem:
    """What an error of the service is to whoever asked."""
    status = next((status for kind, status in STATUS_OF.items() if isinstance(error, kind)), 500)
    return Problem(status=status, code=error.code, detail=str(error))
