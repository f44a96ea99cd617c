"""A store's URL: what libpq takes, and redrive's own options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redrive.errors import ConfigurationError

DEFAULT_POOL: Final = 6
"""Connections for calls; as many again for open transactions, and one that renews claims."""
MAX_POOL: Final = 100
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_PASSWORD: Final = re.compile(r"(//[^:/@]*:)[^@]*@|([?&]\w*password=)[^&]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`conninfo` is libpq's own. `schema` None: tables called redrive_… where the user's search path leads."""

    conninfo: str = field(repr=False)
    schema: str | None
    pool: int
    shown: str

    @property
    def prefix(self) -> str:
        """What stands before the name of a table."""
        return "redrive_" if self.schema is None else f'"{self.schema}".redrive_'


def parse(url: str) -> Address:
    """The address in a `postgresql://` URL. Raises `ConfigurationError` for what is none."""
    shown = _PASSWORD.sub(lambda found: f"{found[1]}***@" if found[1] else f"{found[2]}***", url)
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError(f'The store "{shown}" is no URL. Nothing was read or written.') from None
    own = {name: value for name, value in options if name in ("schema", "pool")}
    schema = own.get("schema")
    if schema is not None and _SCHEMA.fullmatch(schema) is None:
        raise ConfigurationError(
            f'The schema "{schema:.70}" in "{shown}" is no plain name.', hint="Write lower-case letters, digits and _."
        )
    pool = own.get("pool", str(DEFAULT_POOL))
    if not (pool.isascii() and pool.isdigit() and 1 <= int(pool) <= MAX_POOL):
        raise ConfigurationError(f'pool={pool:.20} in "{shown}" is no number from 1 to {MAX_POOL}.')
    left = urlencode([(name, value) for name, value in options if name not in own])
    return Address(conninfo=urlunsplit(parts._replace(query=left)), schema=schema, pool=int(pool), shown=shown)
