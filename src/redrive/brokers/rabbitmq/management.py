"""What the management plugin tells of a broker: definitions, versions, counts. Read only, but for policies.

A user with the tag `management` and read permission is enough; the export of definitions as a whole, which needs an
administrator, is not used. Nothing of messages goes through here: headers do not survive it.

A plugin that is absent is no error of the caller's: `ManagementUnavailableError` says so, and what works without it.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from redrive.core.topology.definitions import OPERATOR_POLICY, Definitions, read_definitions
from redrive.core.topology.model import Policy
from redrive.errors import BrokerUnavailableError, ConfigurationError

TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 64_000_000
PAGE_SIZE: Final = 500
"""The API's own limit of a page."""
MAX_PAGES: Final = 2_000

_PORT_STEP: Final = 10_000
_MAX_PORT: Final = 65_535
_PLAIN_PORT: Final = 15_672
_TLS_PORT: Final = 15_671


class ManagementUnavailableError(BrokerUnavailableError):
    """The management API does not answer (no plugin, another port, a firewall). AMQP is not concerned."""

    code = "management_unavailable"


class ManagementRefusedError(ConfigurationError):
    """The management API refused the user. The hint names the tag or permission that is missing."""

    code = "management_refused"


def management_url(host: str, amqp_port: int, *, is_tls: bool = False) -> str:
    """Where the plugin of a broker listens by habit: the same host, 10 000 ports above AMQP (15672; with TLS 15671)."""
    port = amqp_port + _PORT_STEP
    if port > _MAX_PORT:
        port = _TLS_PORT if is_tls else _PLAIN_PORT
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """What the plugin counts of one queue. It lags some seconds, and is all None where its statistics are off."""

    ready: int | None
    unacknowledged: int | None
    consumers: int | None


def _no_url() -> ConfigurationError:
    return ConfigurationError(
        "--management is no HTTP URL with a host and a port up to 65535.", hint="Write http://host:15672."
    )


class Management:
    """A client of one broker's management API. Safe to use from several tasks; every call is one request."""

    def __init__(self, url: str, *, login: tuple[str, str], tls: ssl.SSLContext | None = None) -> None:
        """`url`: http or https; a login in it wins over `login`, and a path before `/api` is kept. `tls`: how to trust,
        where that is not the system's business.

        Raises `ConfigurationError` for what is no such URL; the text holds no credentials.
        """
        try:
            parts = urlsplit(url)
            self._port = parts.port or (_TLS_PORT if parts.scheme == "https" else _PLAIN_PORT)
        except ValueError:
            raise _no_url() from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _no_url()
        self._host, self._scheme = parts.hostname, parts.scheme
        self._path = parts.path.rstrip("/")
        self._tls = tls
        user, password = login
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
        self._user = user
        self._login = base64.b64encode(f"{user}:{password}".encode()).decode()

    def __repr__(self) -> str:
        return f"Management({self.place})"

    @property
    def place(self) -> str:
        """Where it is, without the login."""
        return f"{self._scheme}://{self._host}:{self._port}{self._path}"

    async def version(self) -> str:
        """Of RabbitMQ."""
        return str((await self._get("/api/overview")).get("rabbitmq_version", ""))

    async def definitions(self, vhost: str) -> Definitions:
        """Everything of one virtual host, as a definitions file would hold it: exchanges, queues, bindings, policies,
        operator policies, version and feature flags. Exclusive queues, which belong to a connection, are left out.
        """
        place = quote(vhost, safe="")
        version = await self.version()
        queues = [
            each
            for each in await self._all(f"/api/queues/{place}")
            if not each.get("exclusive") and not each.get("owner_pid_details")
        ]
        named = {each.get("name") for each in queues}
        bindings = [
            each
            for each in await self._all(f"/api/bindings/{place}")
            if each.get("source") and (each.get("destination_type") != "queue" or each.get("destination") in named)
        ]
        document = {
            "rabbit_version": version,
            "vhosts": [await self._vhost(vhost)],
            "queues": [_with_vhost(each, vhost) for each in queues],
            "exchanges": [
                _with_vhost(each, vhost) for each in await self._all(f"/api/exchanges/{place}") if each.get("name")
            ],
            "bindings": [_with_vhost(each, vhost) for each in bindings],
            "policies": [_with_vhost(each, vhost) for each in await self._all(f"/api/policies/{place}")],
            "parameters": [_operator(each, vhost) for each in await self._operator_policies(place)],
        }
        return read_definitions(document, vhost=vhost)

    async def feature_flags(self) -> frozenset[str] | None:
        """Those that are switched on; None where the user may not know."""
        try:
            flags = await self._get("/api/feature-flags")
        except ManagementRefusedError:
            return None
        return frozenset(
            str(each.get("name")) for each in flags if isinstance(each, dict) and each.get("state") == "enabled"
        )

    async def counts(self, vhost: str, queue: str) -> QueueCounts:
        """Of one queue; see `QueueCounts`."""
        found = await self._get(f"/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}")
        return QueueCounts(
            ready=_count(found.get("messages_ready")),
            unacknowledged=_count(found.get("messages_unacknowledged")),
            consumers=_count(found.get("consumers")),
        )

    async def put_policy(self, policy: Policy, *, operator: bool = False) -> None:
        """Declare it, in place of one of its name; with the tag `policymaker`, an operator policy `administrator`."""
        kind = "operator-policies" if operator else "policies"
        body = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        path = f"/api/{kind}/{quote(policy.vhost, safe='')}/{quote(policy.name, safe='')}"
        await self._ask("PUT", path, body, tag="administrator" if operator else "policymaker")

    # ------------------------------------------------------------------------------------------ reading

    async def _vhost(self, vhost: str) -> dict[str, Any]:
        try:
            found = await self._get(f"/api/vhosts/{quote(vhost, safe='')}")
        except ManagementRefusedError:
            return {"name": vhost}
        told = found.get("default_queue_type")
        # "undefined" is how the plugin writes that nothing is said.
        return {"name": vhost} if told in (None, "undefined") else {"name": vhost, "default_queue_type": told}

    async def _operator_policies(self, place: str) -> list[dict[str, Any]]:
        try:
            return await self._all(f"/api/operator-policies/{place}")
        except ManagementRefusedError:
            return []

    async def _all(self, path: str) -> list[dict[str, Any]]:
        """Every entry of a list, page by page where the API has pages."""
        found: list[dict[str, Any]] = []
        for page in range(1, MAX_PAGES + 1):
            answer = await self._get(f"{path}?{urlencode({'page': page, 'page_size': PAGE_SIZE})}")
            if isinstance(answer, list):
                return answer
            found += answer.get("items", [])
            if page >= int(answer.get("page_count", 1)):
                return found
        raise ConfigurationError(f"{self.place} lists more than {MAX_PAGES * PAGE_SIZE} entries.")

    async def _get(self, path: str) -> Any:
        return await self._ask("GET", path)

    async def _ask(self, method: str, path: str, body: object = None, *, tag: str = "management") -> Any:
        status, text = await asyncio.to_thread(self._request, method, path, body)
        if status in (401, 403):
            raise ManagementRefusedError(
                f'{self.place} refused the user "{self._user}" ({method} {path.partition("?")[0]}: {status}).',
                hint=f"Give it the tag: rabbitmqctl set_user_tags {self._user} {tag}; and read permission in the "
                "virtual host. Without it --no-management works over AMQP alone.",
            )
        if status == 404:  # noqa: PLR2004
            raise ManagementUnavailableError(
                f"{self.place} has no {path.partition('?')[0]}.",
                hint="Is --management the URL of this broker's plugin?",
            )
        if status >= 400:  # noqa: PLR2004
            said = text.decode(errors="replace")[:300]
            raise ManagementUnavailableError(f"{self.place} answered {status} to {method} {path}: {said}")
        try:
            return json.loads(text) if text else {}
        except ValueError:
            raise ManagementUnavailableError(f"{self.place} answered something that is no JSON.") from None

    def _request(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        """Blocking; one connection a request, so that nothing is shared between threads."""
        made: http.client.HTTPConnection = (
            http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=self._tls or ssl.create_default_context()
            )
            if self._scheme == "https"
            else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        )
        headers = {"Authorization": f"Basic {self._login}", "Content-Type": "application/json"}
        try:
            made.request(method, self._path + path, None if body is None else json.dumps(body), headers)
            answer = made.getresponse()
            text = answer.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise ManagementUnavailableError(
                f"The management API at {self.place} cannot be reached ({type(error).__name__}).",
                hint="Enable it (rabbitmq-plugins enable rabbitmq_management), name it with --management URL, or say "
                "--no-management to work over AMQP alone.",
            ) from None
        finally:
            made.close()
        if len(text) > MAX_ANSWER_BYTES:
            raise ManagementUnavailableError(f"{self.place} answered more than {MAX_ANSWER_BYTES} bytes.")
        return answer.status, text


def _with_vhost(entry: Mapping[str, Any], vhost: str) -> dict[str, Any]:
    return {**entry, "vhost": vhost}


def _operator(entry: Mapping[str, Any], vhost: str) -> dict[str, Any]:
    value = {name: entry[name] for name in ("pattern", "definition", "priority", "apply-to") if name in entry}
    return {"component": OPERATOR_POLICY, "vhost": vhost, "name": entry.get("name"), "value": value}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
