"""RFC 9457 problem documents: what a sender reads when it is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

PROBLEM_TYPE: Final = "urn:redrive:error:"
"""In front of the code; the code is the anchor in docs/reference."""

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One refusal. `detail` is for a person and holds no secret; `extra` are further members of the document."""

    status: int
    code: str
    detail: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def document(self, *, trace_id: str) -> bytes:
        """The body of the answer."""
        members = {
            "type": PROBLEM_TYPE + self.code,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.extra,
            "traceId": trace_id,
        }
        return json.dumps(members, ensure_ascii=False).encode("utf-8", "replace")


class Refused(Exception):
    """Ends the handling of a request with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem
