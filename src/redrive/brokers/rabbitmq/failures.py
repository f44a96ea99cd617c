"""What AMQP and its client report, as errors of redrive: the one table, by reply code.

Inside this package a lost channel is `ChannelLost`, a lost connection `LinkLost`; whoever holds messages then knows
best what became of them and says so. What leaves the package is a `RedriveError`.
"""

from __future__ import annotations

import re
import ssl
from typing import Final

from pika import exceptions

from redrive.core.text import cut
from redrive.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidMessageError,
    QueueNotFoundError,
    RedriveError,
)

ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406
"""Reply codes of AMQP 0-9-1 that close a channel."""
NOT_ALLOWED = 530
"""The virtual host is not there, or not for this user."""

MAX_TEXT_BYTES: Final = 500


class ChannelLost(Exception):
    """The broker closed the channel: `code` and `text` as it said."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = cut(text, MAX_TEXT_BYTES)


class LinkLost(Exception):
    """The connection is gone, or was closed by us."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = cut(text, MAX_TEXT_BYTES)


def channel_lost(reason: BaseException) -> ChannelLost | LinkLost:
    """Why a channel is gone, as the client tells it."""
    if isinstance(reason, exceptions.ChannelClosed):
        return ChannelLost(reason.reply_code, reason.reply_text)
    return LinkLost(said(reason))


def said(reason: BaseException | None) -> str:
    """What a connection's end says, in words."""
    if isinstance(reason, exceptions.ConnectionClosed):
        return f"{reason.reply_code} {reason.reply_text}"
    return str(reason) or type(reason).__name__


_REFUSING: Final = (exceptions.AuthenticationError, exceptions.ProbableAuthenticationError)
_WRONG_PROTOCOL: Final = (exceptions.IncompatibleProtocolError, exceptions.ProtocolVersionMismatch)


def refusal(reason: BaseException | None, where: str, *, is_tls: bool = False) -> RedriveError | None:
    """The error where trying again would change nothing: wrong credentials, certificates, virtual host or port."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"The certificate of RabbitMQ at {where} is not trusted: {reason.verify_message}. Nothing was consumed or "
            "published.",
            hint="Name the CA's file in the URL: ?ca=…; the host's name has to stand in the certificate.",
        )
    if is_tls and isinstance(reason, (ssl.SSLError, *_WRONG_PROTOCOL)):
        return ConfigurationError(
            f"RabbitMQ at {where} ended the TLS handshake. Nothing was consumed or published.",
            hint="Does it want a client certificate (?cert=…&key=…), and is TLS spoken at this port (5671)?",
        )
    if isinstance(reason, _REFUSING):
        return ConfigurationError(
            f"RabbitMQ at {where} refused the user or the password. Nothing was consumed or published.",
            hint="Check the URL's user and password; a user named guest may only connect from the same machine.",
        )
    if isinstance(reason, exceptions.ConnectionClosed) and reason.reply_code in (NOT_ALLOWED, ACCESS_REFUSED):
        return ConfigurationError(
            f"RabbitMQ at {where} refused the virtual host: {cut(reason.reply_text, MAX_TEXT_BYTES)}. Nothing was "
            "consumed or published.",
            hint="Is its name percent-encoded in the URL (%2F for /), and may this user use it?",
        )
    if isinstance(reason, exceptions.ProbableAccessDeniedError):
        return ConfigurationError(
            f"RabbitMQ at {where} closed the connection at the virtual host. Nothing was consumed or published.",
            hint="Does the virtual host exist, and may this user use it? rabbitmqctl list_permissions --vhost …",
        )
    if isinstance(reason, _WRONG_PROTOCOL):
        return ConfigurationError(
            f"What answers at {where} does not speak AMQP 0-9-1. Nothing was consumed or published.",
            hint="The port is 5672, or 5671 with amqps://; 15672 is the management API.",
        )
    return None


BY_ITSELF: Final = "It is tried again by itself; what was accepted before is safe."
AT_START: Final = "Does it run, and are host and port right? Then start this again."


def unavailable(
    where: str, text: str, *, fate: str = "Nothing was accepted by this call.", hint: str = BY_ITSELF
) -> BrokerUnavailableError:
    """The broker is away, for now."""
    return BrokerUnavailableError(
        f"RabbitMQ at {where} cannot be reached: {cut(text, MAX_TEXT_BYTES)}. {fate}", hint=hint
    )


_NAMED: Final = re.compile(r"(?:queue|exchange) '((?:[^'\\]|\\.)*)' in vhost")


def named_in(text: str) -> str | None:
    """The queue or exchange the broker's words are about."""
    found = _NAMED.search(text)
    return None if found is None else found[1]


NOTHING_CHANGED: Final = "Nothing was changed."


def refused_queue(queue: str, lost: ChannelLost, *, doing: str) -> RedriveError:
    """Why a queue cannot be declared, consumed or looked at."""
    return refused(f'Queue "{queue}"', lost, doing=doing)


def refused(what: str, lost: ChannelLost, *, doing: str, fate: str = NOTHING_CHANGED) -> RedriveError:
    """Why something on the broker cannot be declared or used. `what`: its kind and its name in quotes."""
    match lost.code:
        case 403:
            return ConfigurationError(f"{what} cannot be {doing}: {lost.text}. {fate}", hint=_permission(lost.text))
        case 404:
            return QueueNotFoundError(f"{what} is not on the broker: {lost.text}. {fate}")
        case 405:
            return BrokerUnavailableError(
                f"{what} cannot be {doing}: it is exclusive to another connection. {fate}",
                hint="It is free again once that connection is gone.",
            )
        case 406:
            return ConfigurationError(
                f"{what} cannot be {doing}: {lost.text}. {fate}", hint="See what differs: redrive topology plan"
            )
        case _:
            return BrokerUnavailableError(
                f"{what} cannot be {doing} now: {lost.code} {lost.text}. {fate}", hint="It is tried again by itself."
            )


_ACCESS: Final = re.compile(r"(?:(configure|write|read) )?access to (\w+ '(?:[^'\\]|\\.)*')")


def _permission(text: str) -> str:
    """What the user is to be allowed, as far as the broker says it."""
    found = _ACCESS.search(text)
    # Which one it is only a 4.x says.
    lacks = "the permission" if found is None else f"permission {f'to {found[1]}' if found[1] else 'for'} {found[2]}"
    return f"Give the user {lacks}: rabbitmqctl set_permissions --vhost VHOST USER CONFIGURE WRITE READ"


def refused_publish(message_id: str, target: str, lost: ChannelLost) -> RedriveError:
    """Why the broker closed the channel over one message."""
    name = cut(message_id, 120)
    match lost.code:
        case 404:
            return QueueNotFoundError(
                f'Message "{name}" was not published: {target} is not on the broker ({lost.text}). Nothing is lost; '
                "repeat it once it is there."
            )
        case 403:
            return ConfigurationError(
                f'Message "{name}" was not published to {target}: {lost.text}.',
                hint="Give the user the permission to write: rabbitmqctl set_permissions",
            )
        case 406 | 311:
            return InvalidMessageError(f'Message "{name}" was refused for {target}: {lost.text}. It was not published.')
        case _:
            return BrokerUnavailableError(
                f'Message "{name}" was not confirmed for {target}: {lost.code} {lost.text}.',
                hint="Repeat it with the same id.",
            )
