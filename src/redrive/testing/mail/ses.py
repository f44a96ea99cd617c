"""SesEndpoint: the part of Amazon SES API v2 that sends, over HTTP, with real signatures checked."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from redrive.testing.mail.script import DROP, Answer, Script

PATH: Final = "/v2/email/outbound-emails"
MAX_BODY_BYTES: Final = 40 * 1024 * 1024
STATUS_OF: Final[Mapping[str, int]] = {
    "TooManyRequestsException": 429,
    "NotFoundException": 404,
    "ServiceUnavailable": 503,
    "InternalServiceErrorException": 500,
    "SignatureDoesNotMatch": 403,
}
"""Status of an error; all others are 400, as SES has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SesMail:
    """One message taken: the whole request, and the id it was given."""

    id: str
    request: Mapping[str, Any]

    @property
    def recipients(self) -> tuple[str, ...]:
        """All addresses it goes to."""
        destination = self.request.get("Destination", {})
        names = ("ToAddresses", "CcAddresses", "BccAddresses")
        return tuple(address for name in names for address in destination.get(name, ()))

    @property
    def content(self) -> bytes:
        """The raw message, where it was sent so."""
        return base64.b64decode(self.request["Content"]["Raw"]["Data"])


class SesEndpoint(Script):
    """One endpoint on a free port. Stage `send`: an answer "Code: text" is that error; `DROP` cuts the connection
    before the message is taken. Stage `answer`: the message is taken; `DROP` cuts before it is told.
    """

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        access_key: str = "AKIDEXAMPLE",
        secret_key: str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",  # noqa: S107 - of AWS's own documents
        region: str = "eu-central-1",
        port: int = 0,
    ) -> None:
        super().__init__(answer)
        self.mails: list[SesMail] = []
        self.access_key, self.secret_key, self.region = access_key, secret_key, region
        self.port = port
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            answer = self._answered(await _request(reader))
            if answer is not None:
                writer.write(answer)
                await writer.drain()
                writer.close()
                return
        writer.transport.abort()

    def _answered(self, asked: _Request) -> bytes | None:
        if (asked.method, asked.path) != ("POST", PATH):
            return _error("NotFoundException", f"{asked.method} {asked.path} is not here")
        body = asked.body
        if not self._is_signed(asked.path, asked.headers, body):
            return _error("SignatureDoesNotMatch", "The request signature we calculated does not match yours.")
        request = json.loads(body)
        about = json.dumps(request.get("Destination"))
        told = self.reply("send", about)
        if told == DROP:
            return None
        if told is not None:
            code, _, text = told.partition(":")
            return _error(code.strip(), text.strip())
        mail = SesMail(id=f"0100{len(self.mails):012x}-{hashlib.sha256(body).hexdigest()[:8]}", request=request)
        self.mails.append(mail)
        if self.reply("answer", about) == DROP:
            return None
        return _response(200, {"MessageId": mail.id}, {})

    def _is_signed(self, path: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Signature version 4, worked out anew from the request as it came."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        parts = dict(part.strip().partition("=")[::2] for part in given.split(","))
        scope = f"{headers.get('x-amz-date', '')[:8]}/{self.region}/ses/aws4_request"
        if scheme != "AWS4-HMAC-SHA256" or parts.get("Credential") != f"{self.access_key}/{scope}":
            return False
        names = parts.get("SignedHeaders", "").split(";")
        lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names)
        digest = hashlib.sha256(body).hexdigest()
        canonical = f"POST\n{unquote(path)}\n\n{lines}\n{';'.join(names)}\n{digest}"
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{headers.get('x-amz-date', '')}\n{scope}\n{hashed}"
        expected = hmac.digest(key, text.encode(), "sha256").hex()
        return "host" in names and hmac.compare_digest(expected, parts.get("Signature", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


async def _request(reader: asyncio.StreamReader) -> _Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    named = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in named}
    size = int(headers.get("content-length", "0"))
    if size > MAX_BODY_BYTES:
        raise ValueError(size)
    return _Request(method=method, path=path, headers=headers, body=await reader.readexactly(size))


def _error(code: str, text: str) -> bytes:
    return _response(STATUS_OF.get(code, 400), {"message": text}, {"x-amzn-errortype": code})


def _response(status: int, document: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    body = json.dumps(document).encode()
    lines = {**headers, "content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + body
