"""Settings: one frozen value; constructor arguments over `REDRIVE_*` variables over `redrive.toml`.

In a file and in arguments a setting has its plain name and durations are written as everywhere (`grace = "30s"`); in
the environment it is `REDRIVE_` and the name in capitals (`REDRIVE_GRACE=30s`). The fields hold whole milliseconds.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from redrive.core.access import MAX_RULES, RedactRule, redact_rule_from
from redrive.core.policy.catalogue.mail import MailRule, mail_rule_from
from redrive.core.units import Millis, duration_ms
from redrive.errors import ConfigurationError
from redrive.runtime.jwt_rules import JwtRules, jwt_rules_from

ENVIRONMENT_PREFIX: Final = "REDRIVE_"
FILE_NAME: Final = "redrive.toml"
FILE_VARIABLE: Final = "REDRIVE_CONFIG"
"""Names another settings file than `redrive.toml` in the working directory."""

MAX_PORT: Final = 65_535

FOREIGN_PREFIXES: Final = ("REDRIVE_TEST_",)
"""Variables of our own test runs, not settings."""

Durability: TypeAlias = Literal["full", "normal"]

_METRIC_PREFIX: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_MS: Final = "_ms"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may differ between two installations of one app. A consumer's own policy is in its decorator instead.

    `broker`: URL of the broker. `store`: URL of the store for claims, letters and jobs of a broker that has none
    (RabbitMQ); a SQLite file does not span hosts. `durability`: `full` survives power loss, `normal` may lose the last
    moments of it (never on a mere crash). `lock_timeout`: how long to wait for another process's write.
    `concurrency`: handlers at once per consumer where the consumer does not say; None: 100 on the loop, 16 threads,
    or one process per CPU. `grace`: how long a stopping worker waits for what runs. `max_body_bytes` and
    `max_decoded_bytes` bound a body as stored and after gzip. `default_content_type`: what a message without one is.
    `pause_initial` and `pause_max` bound the waits while the broker is away. `upkeep_interval`: between two rounds of
    pruning. `processes`: workers that `redrive work` starts. `host` and `port`: where `redrive up` and `serve` listen.
    `log_level`: debug, info, warn or error. `log_format`: `json`, `text`, or `auto` (text at a terminal).
    `metrics_prefix`: what the names of all metrics begin with; empty gives the bare names. `mail_rules`: your own rules
    over what mail servers answer, as tables (`[[mail_rules]]`), or a file that holds them.
    `admin_tokens`: the file of the admin API's tokens (`redrive token`). `admin_jwt`: a table that says which JSON Web
    Tokens it takes, or a file that holds it. `redact`: tables of what a role does not see of messages.
    `archive`: the folder where dead letters over a consumer's `max_letters` are written. `version`: of the app, kept
    with each dead letter; empty: unknown.
    """

    broker: str = "sqlite:///redrive.db"
    store: str = "sqlite:///redrive.db"
    durability: Durability = "full"
    lock_timeout_ms: Millis = 5_000
    concurrency: int | None = None
    processes: int = 1
    grace_ms: Millis = 30_000
    max_body_bytes: int = 16 * 1024 * 1024
    max_decoded_bytes: int = 64 * 1024 * 1024
    default_content_type: str = "application/json"
    pause_initial_ms: Millis = 1_000
    pause_max_ms: Millis = 30_000
    upkeep_interval_ms: Millis = 60_000
    host: str = "127.0.0.1"
    port: int = 8000
    log_level: str = "info"
    log_format: str = "auto"
    metrics_prefix: str = "redrive_"
    mail_rules: tuple[MailRule, ...] = ()
    archive: str = "redrive-archive"
    admin_tokens: str = "redrive-tokens.toml"
    admin_jwt: JwtRules | None = None
    redact: tuple[RedactRule, ...] = ()
    version: str = ""

    def __post_init__(self) -> None:
        _check_choice("durability", self.durability, ("full", "normal"))
        _check_choice("log_level", self.log_level, ("debug", "info", "warn", "error"))
        _check_choice("log_format", self.log_format, ("auto", "json", "text"))
        for name in ("processes", "max_body_bytes", "max_decoded_bytes", "pause_initial_ms", "upkeep_interval_ms"):
            _check_least(name, getattr(self, name), 1)
        if self.concurrency is not None:
            _check_least("concurrency", self.concurrency, 1)
        if not _METRIC_PREFIX.fullmatch(self.metrics_prefix):
            raise ConfigurationError(
                f"metrics_prefix is {self.metrics_prefix!r}: it may hold letters, digits and _, no digit first.",
                hint='Write "redrive_", or "" for the bare names.',
            )
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigurationError(f"port is {self.port}: it must be from 0 (any free one) to {MAX_PORT}.")
        if not self.host.strip():
            raise ConfigurationError(
                "host is empty.", hint='Write "127.0.0.1" for this machine only, "0.0.0.0" for every address.'
            )
        if self.pause_max_ms < self.pause_initial_ms:
            raise ConfigurationError(
                f"pause_max ({self.pause_max_ms} ms) is shorter than pause_initial ({self.pause_initial_ms} ms)."
            )
        if self.max_decoded_bytes < self.max_body_bytes:
            raise ConfigurationError(
                f"max_decoded_bytes ({self.max_decoded_bytes}) is below max_body_bytes ({self.max_body_bytes})."
            )


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """The settings that hold: each argument that is not None, else the variable, else the file, else the default.

    `file` None: what `REDRIVE_CONFIG` names, else `redrive.toml` in the working directory if there is one.
    Raises `ConfigurationError` naming the setting and where it came from; a key nobody knows is an error.
    """
    variables = os.environ if environment is None else environment
    values = _from_file(file, variables)
    values.update(_from_environment(variables))
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    values.update(_parsed(given, source="the arguments"))
    return Settings(**values)


def setting_names() -> tuple[str, ...]:
    """Every setting by the name a person writes."""
    return tuple(_FIELDS)


def _from_file(file: Path | None, variables: Mapping[str, str]) -> dict[str, Any]:
    named = variables.get(FILE_VARIABLE) if file is None else str(file)
    path = Path(FILE_NAME if named is None else named)
    if named is None and not path.exists():
        return {}
    return _parsed(_table_of(path, what="The settings file"), source=str(path))


def _table_of(path: Path, *, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise ConfigurationError(f'{what} "{path}" does not exist.') from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f'{what} "{path}" is not TOML: {error}.') from error


def _from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for variable, text in variables.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable != FILE_VARIABLE:
            if variable.startswith(FOREIGN_PREFIXES):
                continue
            found[variable.removeprefix(ENVIRONMENT_PREFIX).lower()] = text
    return _parsed(found, source="the environment (REDRIVE_*)")


def _parsed(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    parsed = {}
    for name, value in values.items():
        field = _FIELDS.get(name)
        if field is None:
            raise ConfigurationError(f"{name} in {source} is unknown.", hint=nearest(name, _FIELDS))
        parsed[field.name] = _value(field, value, source)
    return parsed


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint for a name nobody knows: the nearest known one, else all of them."""
    near = difflib.get_close_matches(name, names := sorted(known), n=1)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names)}."


def _value(field: dataclasses.Field[Any], value: Any, source: str) -> Any:
    name = field.name.removesuffix(_MS)
    if field.name.endswith(_MS):
        plain = float(value) if isinstance(value, str) and value.replace(".", "", 1).isdecimal() else value
        return duration_ms(plain, field=name)
    if name == "mail_rules":
        return _mail_rules(value, source)
    if name == "redact":
        return _redact_rules(value, source)
    if name == "admin_jwt":
        return _jwt_rules(value, source)
    kind = str(field.type)
    if kind.startswith("int"):
        return _number(name, value, source)
    if kind == "bool":
        return _truth(name, value, source)
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} in {source} is {value!r}: it must be text.")
    return value


def _mail_rules(value: Any, source: str) -> tuple[MailRule, ...]:
    """Rules as tables or values, or the file that holds the tables."""
    if isinstance(value, str):
        source = value
        value = _table_of(Path(value), what="The file of mail rules").get("mail_rules")
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigurationError(
            f"mail_rules in {source} is {value!r:.60}: it must be a list of tables.",
            hint='Write [[mail_rules]] and below it name = "…", text = "…", verdict = "transient".',
        )
    return tuple(rule if isinstance(rule, MailRule) else mail_rule_from(rule, source=source) for rule in value)


def _redact_rules(value: Any, source: str) -> tuple[RedactRule, ...]:
    """Rules as tables or values, or the file that holds the tables."""
    if isinstance(value, str):
        source = value
        value = _table_of(Path(value), what="The file of redact rules").get("redact")
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MAX_RULES:
        raise ConfigurationError(f"redact in {source} must be a list of at most {MAX_RULES} tables.")
    return tuple(rule if isinstance(rule, RedactRule) else redact_rule_from(rule, source=source) for rule in value)


def _jwt_rules(value: Any, source: str) -> JwtRules:
    """Rules as a table or a value, or the file that holds the table."""
    if isinstance(value, JwtRules):
        return value
    if isinstance(value, str):
        source = value
        value = _table_of(Path(value), what="The file of JWT rules").get("admin_jwt")
    return jwt_rules_from(value, source=source)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(name: str, value: Any, source: str) -> int:
    if _is_count(value):
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return int(value)
    raise ConfigurationError(f"{name} in {source} is {value!r}: it must be a whole number.")


def _truth(name: str, value: Any, source: str) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ConfigurationError(f"{name} in {source} is {value!r}: it must be true or false.")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r}: it must be one of {', '.join(choices)}.")


def _check_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigurationError(f"{name.removesuffix(_MS)} is {value}: it must be at least {least}.")


_FIELDS: Final = {field.name.removesuffix(_MS): field for field in dataclasses.fields(Settings)}
