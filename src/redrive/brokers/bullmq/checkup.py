"""Checkup: what a Redis server says of its settings and state, read once on a connection of its own.

A replica or a server that is still loading answers here, although no message moves there: that is what a person wants
to know. Judged in `redrive.core.doctor.redis`.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final

from redrive.core.doctor.redis import CONFIG_NAMES, RedisReading
from redrive.redis.address import Address, parse
from redrive.redis.failures import LinkLost, Refusal, check, connect_refusal, unavailable
from redrive.redis.lane import find
from redrive.redis.link import Link, dial, greeting, read_info

_QUESTIONS: Final = (("INFO",), ("INFO", "errorstats"), *(("CONFIG", "GET", name) for name in CONFIG_NAMES))


async def read(url: str) -> RedisReading:
    """What the server of this URL says. Raises `ConfigurationError` for a URL or credentials that are wrong,
    `BrokerUnavailableError` where no host answers.
    """
    address = parse(url)
    try:
        link = await _linked(address)
        try:
            return _reading(await link.send(_QUESTIONS))
        finally:
            link.close()
    except (LinkLost, Refusal, ssl.SSLError) as error:
        # Also what INFO itself is answered: a server that wants a password and was given none refuses only there.
        raise (
            connect_refusal(error, address.where, is_tls=address.tls is not None)
            or unavailable(address.where, str(error), fate="Nothing was read.")
        ) from error


def _reading(replies: Sequence[Any]) -> RedisReading:
    info = read_info(check(replies[0]))
    errors = {} if isinstance(replies[1], Exception) else read_info(replies[1])
    config: dict[str, str] = {}
    for reply in replies[2:]:
        # A server whose owner forbids CONFIG answers with an error; one that does not know a name, with nothing.
        if not isinstance(reply, Exception):
            texts = [text.decode("utf-8", "replace") for text in reply]
            config.update(zip(texts[::2], texts[1::2], strict=False))
    return RedisReading(info={**info, **errors}, config=config)


async def _linked(address: Address) -> Link:
    """A connection to the first host that answers, whatever its role."""
    if address.sentinel is not None:
        return await find(address)
    failed: BaseException = LinkLost("no host is known", was_sent=False)
    for host, port in address.hosts:
        try:
            return await _connected(host, port, address)
        except (LinkLost, ssl.SSLError) as error:
            failed = error
    raise failed


async def _connected(host: str, port: int, address: Address) -> Link:
    link = await dial(host, port, address)
    try:
        for command in greeting(address):
            (reply,) = await link.send([command])
            if command[0] == "AUTH":
                check(reply)
    except BaseException:
        link.close()
        raise
    return link
