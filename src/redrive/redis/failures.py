"""What a Redis server says, as redrive's errors: the only table of it.

A reply that is an error starts with a code. `kind_of` finds it, also inside what a script passes on; `KINDS` says what
it means. TRANSIENT: the same call is good again once the server is (it restarts, fails over, runs a long script), and
it was not carried out. FULL: it has no memory. MOVED: another node of the cluster has the key. UNKNOWN_SCRIPT: it has
to be sent whole. REFUSED: trying again changes nothing, a person must.
"""

from __future__ import annotations

import re
import ssl
from enum import Enum
from typing import Any, Final

from redrive.core.text import cut
from redrive.errors import BrokerUnavailableError, ConfigurationError, RedriveError

MAX_TEXT_BYTES: Final = 300


class Kind(Enum):
    """What an error of the server means for the call."""

    TRANSIENT = "transient"
    FULL = "full"
    MOVED = "moved"
    UNKNOWN_SCRIPT = "unknown script"
    REFUSED = "refused"


KINDS: Final[dict[str, tuple[Kind, str]]] = {
    "LOADING": (Kind.TRANSIENT, "it is starting and reads its data"),
    "MASTERDOWN": (Kind.TRANSIENT, "it is a replica that has lost its master"),
    "READONLY": (Kind.TRANSIENT, "it is a replica now and takes no writes: a failover"),
    "BUSY": (Kind.TRANSIENT, "it runs a long script (SCRIPT KILL ends it)"),
    "TRYAGAIN": (Kind.TRANSIENT, "the cluster is moving these keys"),
    "ASK": (Kind.TRANSIENT, "the cluster is moving this key"),
    "CLUSTERDOWN": (Kind.TRANSIENT, "its cluster is down"),
    "NOREPLICAS": (Kind.TRANSIENT, "it has not enough replicas to accept writes"),
    "MISCONF": (Kind.TRANSIENT, "it cannot write its data to disk, and refuses writes"),
    "UNKILLABLE": (Kind.TRANSIENT, "it runs a script that has written"),
    "DB index is out of range": (Kind.REFUSED, "it has no such database"),
    "max number of clients": (Kind.TRANSIENT, "every connection it allows is taken (maxclients)"),
    "NOSCRIPT": (Kind.UNKNOWN_SCRIPT, "it does not know the script"),
    "OOM": (Kind.FULL, "its memory is full (maxmemory)"),
    "MOVED": (Kind.MOVED, "another node of the cluster has this key"),
    "NOAUTH": (Kind.REFUSED, "it wants a password"),
    "WRONGPASS": (Kind.REFUSED, "it refused the user or the password"),
    "NOPERM": (Kind.REFUSED, "this user may not do that"),
    "WRONGTYPE": (Kind.REFUSED, "a key of the queue holds something else than BullMQ puts there"),
    "CROSSSLOT": (Kind.REFUSED, "the keys of the queue lie in different slots of the cluster"),
    "DENIED": (Kind.REFUSED, "it runs in protected mode"),
}

_HINTS: Final = {
    "OOM": "Nothing accepted before is lost. Let workers drain the queue, or raise maxmemory; noeviction must stay.",
    "DB index is out of range": "Its setting databases says how many there are; a cluster has database 0 only.",
    "max number of clients": "It is tried again by itself. Raise maxclients, or run fewer processes.",
    "CROSSSLOT": "Give the keys a hash tag: prefix={bull} in the URL, or braces around the queue's name.",
    "WRONGTYPE": "Is another program using the same prefix? Choose one in the URL: ?prefix=…",
    "NOAUTH": "Give the password in the URL: redis://:password@host.",
    "WRONGPASS": "Check the URL's user and password.",
    "NOPERM": "Give the user the keys of the prefix and the commands: ACL SETUSER … ~bull:* +@all.",
}
_CODE: Final = re.compile(r"(?<![A-Z])(" + "|".join(KINDS) + r")\b")

_MOVED: Final = re.compile(r"MOVED \d+ (\S*):(\d{1,5})\b", re.ASCII)


class LinkLost(Exception):
    """The connection was lost, or never came; what was sent on it may or may not have been carried out."""

    def __init__(self, text: str, *, was_sent: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.was_sent = was_sent


class Refusal(Exception):
    """The server answered with an error. `text` is its words, `code` their first word as far as it is known."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code = code_of(text)

    @property
    def kind(self) -> Kind:
        """What it means; an error nobody knows is a person's business."""
        return KINDS[self.code][0] if self.code else Kind.REFUSED


def code_of(text: str) -> str:
    """The code in a server's words, "" where none of the known ones is."""
    found = _CODE.search(text)
    return "" if found is None else found[1]


def node_in(refusal: Refusal, *, asked: str) -> tuple[str, int] | None:
    """Who has the key, of `MOVED 3999 127.0.0.1:6381`; without a host it is the one that was `asked`. None where it
    says nothing of the kind.
    """
    found = _MOVED.search(refusal.text)
    return None if found is None else (found[1] or asked, int(found[2]))


def check(reply: Any) -> Any:
    """The reply, unless it is an error: then raises `Refusal`."""
    if isinstance(reply, Exception):
        raise Refusal(str(reply))
    return reply


BY_ITSELF: Final = "It is tried again by itself; what was accepted before is safe."


def unavailable(
    where: str, text: str, *, fate: str = "Nothing was accepted by this call.", hint: str = BY_ITSELF
) -> BrokerUnavailableError:
    """The server is away, for now."""
    return BrokerUnavailableError(
        f"Redis at {where} cannot be reached: {cut(text, MAX_TEXT_BYTES)}. {fate}",
        hint=hint,
    )


def refused(where: str, refusal: Refusal, *, fate: str = "Nothing was accepted by this call.") -> RedriveError:
    """The error of redrive for what the server said."""
    words = cut(refusal.text, MAX_TEXT_BYTES)
    meaning = KINDS[refusal.code][1] if refusal.code else "it refused the command"
    hint = _HINTS.get(refusal.code, "")
    if refusal.kind is Kind.REFUSED:
        return ConfigurationError(f"Redis at {where}: {meaning} ({words}). {fate}", hint=hint)
    return BrokerUnavailableError(
        f"Redis at {where}: {meaning} ({words}). {fate}",
        hint=hint or BY_ITSELF,
    )


def connect_refusal(error: BaseException, where: str, *, is_tls: bool) -> RedriveError | None:
    """The error where connecting again would change nothing: certificates, TLS on a plain port, credentials."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"The certificate of Redis at {where} is not trusted: {error.verify_message}. Nothing was consumed or "
            "published.",
            hint="Name the CA's file in the URL: ?ca=…; the host's name has to stand in the certificate.",
        )
    if is_tls and isinstance(error, ssl.SSLError):
        return ConfigurationError(
            f"Redis at {where} ended the TLS handshake. Nothing was consumed or published.",
            hint="Does it want a client certificate (?cert=…&key=…), and is TLS spoken at this port?",
        )
    if isinstance(error, Refusal) and error.kind is Kind.REFUSED:
        return refused(where, error, fate="Nothing was consumed or published.")
    return None
