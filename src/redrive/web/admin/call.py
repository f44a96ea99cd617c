"""Call: one request that has passed every check, as an operation sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from redrive.core.units import UnixMs
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.web.admin.auth import Principal
from redrive.web.admin.auth.tokens import TokenFile
from redrive.web.admin.passes import Passes
from redrive.web.admin.problems import refuse
from redrive.web.admin.runners import Runners
from redrive.web.admin.streams import Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Who asks for what. `query` and `body` are the structs of the operation's row; `lines`: a body that is read bit by
    bit. `request_key`: of the Idempotency-Key, for what the store keeps. `management`: where a RabbitMQ's management
    API is, None for the usual.
    """

    app: Redrive
    principal: Principal
    path: dict[str, str]
    query: Any
    body: Any
    root: str
    runners: Runners
    streams: Streams
    passes: Passes
    lines: AsyncIterator[bytes]
    request_key: str | None = None
    last_event_id: str | None = None
    tokens: TokenFile | None = None
    management: str | None = None

    @property
    def service(self) -> Service:
        """Every operation there is. Raises `Refused` (503) while the app is not open."""
        if not self.app.is_open:
            raise refuse("starting")
        return Service(self.app)

    @property
    def now(self) -> UnixMs:
        """When this is."""
        return self.app.clock.now()

    @property
    def actor(self) -> str:
        """Who, for audit trails."""
        return self.principal.name
