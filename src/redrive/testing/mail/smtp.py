"""SmtpServer: a mail server that takes what it is given, refuses what it is told to, and can be gone at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
from dataclasses import dataclass
from email.message import EmailMessage
from types import TracebackType
from typing import Final, Self

from redrive.testing.mail.script import DROP, Answer, Script

MAX_LINE_BYTES: Final = 65_536
MAX_CONTENT_BYTES: Final = 64 * 1024 * 1024
STAGES: Final = ("connect", "ehlo", "auth", "mail", "rcpt", "data", "content", "answer")
"""`data`: before the server says "go on". `content`: while the content comes. `answer`: after its end, when the message
is taken; cut there, it is taken and nobody was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One message taken."""

    sender: str
    recipients: tuple[str, ...]
    content: bytes

    @property
    def message(self) -> EmailMessage:
        """The content, parsed."""
        return email.message_from_bytes(self.content, policy=email.policy.default)


class _Gone(Exception):
    """The connection is over."""


class SmtpServer(Script):
    """One server on a free port of the loopback interface. `mails`: what it took, in order; `connections`: how many
    came.
    """

    def __init__(self, answer: Answer | None = None, *, port: int = 0) -> None:
        super().__init__(answer)
        self.mails: list[Mail] = []
        self.connections = 0
        self.port = port
        self.host = "127.0.0.1"
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=MAX_LINE_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def received_by(self, address: str) -> int:
        """How many messages this address got."""
        return sum(address in mail.recipients for mail in self.mails)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        try:
            await _Session(self, reader, writer).run()
        except (_Gone, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._open.discard(task)
            writer.close()


class _Session:
    """One connection."""

    def __init__(self, server: SmtpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._sender = ""
        self._recipients: list[str] = []

    async def run(self) -> None:
        """From the greeting to the end."""
        if not await self._said("connect", "", "220 mail.example ESMTP"):
            return
        handlers = {
            "EHLO": self._ehlo,
            "HELO": self._ehlo,
            "AUTH": self._auth,
            "MAIL": self._mail,
            "RCPT": self._rcpt,
            "DATA": self._data,
            "RSET": self._reset,
            "NOOP": self._noop,
            "QUIT": self._quit,
        }
        while True:
            line = (await self._reader.readuntil(b"\n")).decode("utf-8", "replace").strip()
            verb, _, argument = line.partition(" ")
            await handlers.get(verb.upper(), self._unknown)(argument)

    async def _ehlo(self, argument: str) -> None:
        await self._said("ehlo", argument, "250-mail.example\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN")

    async def _mail(self, argument: str) -> None:
        if await self._said("mail", argument, "250 2.1.0 ok"):
            self._sender, self._recipients = _address(argument), []

    async def _rcpt(self, argument: str) -> None:
        if await self._said("rcpt", argument, "250 2.1.5 ok"):
            self._recipients.append(_address(argument))

    async def _reset(self, _argument: str) -> None:
        self._sender, self._recipients = "", []
        await self._say("250 2.0.0 ok")

    async def _noop(self, _argument: str) -> None:
        await self._say("250 2.0.0 ok")

    async def _quit(self, _argument: str) -> None:
        await self._say("221 2.0.0 bye")
        raise _Gone

    async def _unknown(self, _argument: str) -> None:
        await self._say("502 5.5.1 command not implemented")

    async def _auth(self, argument: str) -> None:
        mechanism, _, initial = argument.partition(" ")
        if not initial:
            await self._say("334 ")
            await self._reader.readuntil(b"\n")
        if mechanism.upper() == "LOGIN":
            await self._say("334 UGFzc3dvcmQ6")
            await self._reader.readuntil(b"\n")
        await self._said("auth", mechanism, "235 2.7.0 ok")

    async def _data(self, _argument: str) -> None:
        if not self._recipients:
            await self._say("554 5.5.1 no valid recipients")
            return
        about = f"{self._sender} {' '.join(self._recipients)}"
        if not await self._said("data", about, "354 go on"):
            return
        if self._server.reply("content", about) == DROP:
            await self._reader.read(1)
            raise _Gone
        content = await self._content()
        mail = Mail(sender=self._sender, recipients=tuple(self._recipients), content=content)
        reply = self._server.reply("answer", about)
        if reply is None or reply == DROP:
            self._server.mails.append(mail)
        self._sender, self._recipients = "", []
        if reply == DROP:
            raise _Gone
        await self._say(reply or "250 2.0.0 taken")

    async def _content(self) -> bytes:
        lines, size = [], 0
        while (line := await self._reader.readuntil(b"\n")) not in (b".\r\n", b".\n"):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            size += len(line)
            if size > MAX_CONTENT_BYTES:
                raise _Gone
        return b"".join(lines)

    async def _said(self, stage: str, argument: str, well: str) -> bool:
        """Answer; True where all was well."""
        reply = self._server.reply(stage, argument)
        if reply == DROP:
            raise _Gone
        await self._say(well if reply is None else reply)
        if reply is not None and reply.startswith("421"):
            raise _Gone
        return reply is None

    async def _say(self, text: str) -> None:
        self._writer.write(text.replace("\r\n", "\n").replace("\n", "\r\n").encode() + b"\r\n")
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()


def _address(argument: str) -> str:
    """Of "FROM:<a@b> SIZE=1" the address."""
    return argument.partition("<")[2].partition(">")[0]
