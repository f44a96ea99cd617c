"""Static bearer tokens: made once, shown once, kept as a hash.

A token is `rdt_` and 256 random bits. What is kept is its SHA-256: a slow hash (scrypt) protects what a person chose,
by making guesses dear; nobody guesses 256 random bits, so it would only make each request slower. The file is TOML, one
`[[tokens]]` table each, readable by its owner alone. It is read again when it has changed, so that a token that is
revoked is refused from the next request on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redrive.core.access import Role
from redrive.errors import ConfigurationError, NotFoundError

PREFIX: Final = "rdt_"
"""Makes a token that leaked into a log or a repository easy to find."""
RANDOM_BYTES: Final = 32
MAX_TOKENS: Final = 1_000
MAX_FILE_BYTES: Final = 1_000_000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is kept. `name` stands in audit trails."""

    name: str
    role: Role
    hash: str
    created_at: str = ""


def new_secret() -> str:
    """A token nobody has."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_of(secret: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    """Raises `ConfigurationError` for a name that no token can have."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"A token cannot be named {name!r:.80}.", hint="Use 1 to 64 letters, digits and . _ @ -, no sign first."
        )


class TokenFile:
    """The tokens of one file; none where there is no such file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._tokens: tuple[Token, ...] = ()

    def tokens(self) -> tuple[Token, ...]:
        """What the file holds now. Raises `ConfigurationError` where it is damaged: then nobody gets in by it."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._tokens = None, ()
            return ()
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            self._tokens = _read(self.path)
            self._seen = seen
        return self._tokens

    def find(self, secret: str) -> Token | None:
        """The token with this secret. Every hash is compared, each in constant time."""
        wanted, found = hash_of(secret), None
        for token in self.tokens():
            if hmac.compare_digest(token.hash, wanted):
                found = token
        return found

    def add(self, name: str, role: Role, *, created_at: str) -> str:
        """Make a token and return its secret, which nobody can read again. Raises `ConfigurationError`."""
        check_name(name)
        with self._held():
            known = self.tokens()
            if any(token.name == name for token in known):
                raise ConfigurationError(
                    f'There is a token named "{name}" already.', hint="Revoke it, or name another."
                )
            if len(known) >= MAX_TOKENS:
                raise ConfigurationError(f"{self.path} has {MAX_TOKENS} tokens, and no room for more.")
            secret = new_secret()
            made = Token(name=name, role=role, hash=hash_of(secret), created_at=created_at)
            self._write((*known, made))
        return secret

    def revoke(self, name: str) -> None:
        """From now on nobody gets in by this token. Raises `NotFoundError`."""
        with self._held():
            known = self.tokens()
            left = tuple(token for token in known if token.name != name)
            if left == known:
                raise NotFoundError(f'There is no token named {name!r:.80} in "{self.path}".')
            self._write(left)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """One writer at a time, also of two processes."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path.with_name(self.path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise ConfigurationError(f'"{self.path}" cannot be written: {error.strerror}.') from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _write(self, tokens: tuple[Token, ...]) -> None:
        """All or nothing: a kill leaves the old file or the new one."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        text = "\n".join(_table(token) for token in tokens)
        handle = os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("# Tokens of the admin API, hashed. Written by `redrive token`.\n\n" + text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


def _table(token: Token) -> str:
    pairs = {"name": token.name, "role": str(token.role), "hash": token.hash, "created_at": token.created_at}
    return "[[tokens]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in pairs.items())


def _read(path: Path) -> tuple[Token, ...]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        rows = tomllib.loads(raw.decode()).get("tokens", [])
        found = tuple(_token(row) for row in rows)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f'The tokens in "{path}" cannot be read ({type(error).__name__}).') from None
    if len(raw) > MAX_FILE_BYTES or len(found) > MAX_TOKENS:
        raise ConfigurationError(f'"{path}" holds more than {MAX_TOKENS} tokens.')
    return found


def _token(row: dict[str, Any]) -> Token:
    if not _NAME.fullmatch(row["name"]) or not _HASH.fullmatch(row["hash"]):
        raise ValueError(row["name"])
    return Token(name=row["name"], role=Role(row["role"]), hash=row["hash"], created_at=row.get("created_at", ""))
