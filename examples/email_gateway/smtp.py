"""SMTP, command by command, because a server answers for each recipient and then for the message.

RCPT refused: that recipient only. DATA refused: all who were accepted. Connection lost: before the content was sent,
nobody got it; after its end, nobody knows (redrive tells the two apart by where the client lost it).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import aiosmtplib

from .sent import Sent

CLOSING = 421


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpSender:
    """A mail server. `with_tls`: `auto` where the server offers it, `always`, or `never`."""

    host: str
    port: int
    user: str | None = None
    password: str | None = None
    with_tls: str = "auto"
    timeout_s: float = 30

    async def send(self, mail: bytes, *, sender: str, recipients: tuple[str, ...]) -> Sent:
        """One connection for one mail."""
        client = aiosmtplib.SMTP(
            hostname=self.host,
            port=self.port,
            username=self.user,
            password=self.password,
            timeout=self.timeout_s,
            start_tls={"always": True, "never": False}.get(self.with_tls),
        )
        await client.connect()
        try:
            return await self._transaction(client, mail, sender=sender, recipients=recipients)
        finally:
            # What was said counts, however the good-bye goes.
            with contextlib.suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=5)
            client.close()

    async def _transaction(
        self, client: aiosmtplib.SMTP, mail: bytes, *, sender: str, recipients: tuple[str, ...]
    ) -> Sent:
        await client.mail(sender)
        refused: dict[str, tuple[int, str]] = {}
        try:
            for address in recipients:
                try:
                    await client.rcpt(address)
                except aiosmtplib.SMTPRecipientRefused as error:
                    if error.code == CLOSING:
                        raise
                    refused[address] = (error.code, error.message)
            accepted = tuple(address for address in recipients if address not in refused)
            if not accepted:
                return Sent(refused=refused)
            await client.data(mail)
        except aiosmtplib.SMTPDataError as error:
            told = dict.fromkeys((address for address in recipients if address not in refused), None)
            return Sent(refused={**refused, **dict.fromkeys(told, (error.code, error.message))})
        except (aiosmtplib.SMTPException, OSError) as error:
            return Sent(refused=refused, error=error)
        return Sent(sent=accepted, refused=refused)
