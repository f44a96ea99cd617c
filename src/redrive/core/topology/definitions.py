"""definitions.json: a topology as a file the broker itself imports, and back from any file a broker exported.

What is written is the same for the same topology, byte by byte: everything sorted, nothing that changes by itself in it
(no time, no node), no user and no password unless they are handed in. What is read is whatever
`rabbitmqctl export_definitions`, the HTTP API or the management page wrote, of the whole broker or of one virtual host
(such files name none).

Beware of importing: the broker answers that all is well also where a queue exists with other arguments, and leaves it
as it was. Compare afterwards (`redrive topology plan`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from redrive.core.topology.model import (
    DEFAULT_VHOST,
    Arguments,
    Binding,
    Exchange,
    Policy,
    Queue,
    QueueType,
    Topology,
)
from redrive.core.topology.names import RESERVED
from redrive.errors import ConfigurationError

MAX_FILE_CHARS: Final = 64_000_000
"""Some hundred thousand queues; more is not read."""

OPERATOR_POLICY: Final = "operator_policy"
"""Component of the runtime parameters under which a broker exports operator policies."""


_VERSIONS: Final = ("rabbit_version", "rabbitmq_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What a user may do in one virtual host: patterns of names."""

    user: str
    vhost: str
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """What a file holds. `default_types`: of queues without a type, by virtual host, where it says so. `users`: as they
    stand in the file, password hashes included: never print them.
    """

    topology: Topology
    vhosts: tuple[str, ...] = (DEFAULT_VHOST,)
    default_types: Mapping[str, str] = field(default_factory=dict)
    permissions: tuple[Permission, ...] = ()
    users: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


def export_definitions(
    topology: Topology,
    *,
    permissions: Iterable[Permission] = (),
    users: Iterable[Mapping[str, Any]] = (),
    names_vhost: bool = True,
) -> str:
    """The text of the file. `names_vhost=False`: a file for one virtual host, to be imported into any.

    Raises `ConfigurationError` for an argument that JSON cannot hold (bytes, no value, not a number), and for a
    topology of several virtual hosts that is to name none.
    """
    vhosts = sorted(_vhosts(topology) | {each.vhost for each in permissions})
    if not names_vhost and len(vhosts) > 1:
        raise ConfigurationError(
            f"The topology has several virtual hosts ({', '.join(vhosts)}).", hint="Export them with their names."
        )
    document: dict[str, Any] = {} if topology.version is None else {"rabbit_version": topology.version}
    if names_vhost:
        sections: dict[str, Any] = {
            "users": [dict(sorted(user.items())) for user in sorted(users, key=lambda user: str(user.get("name")))],
            "vhosts": [{"name": vhost} for vhost in vhosts],
            "permissions": [
                _permission(each) for each in sorted(permissions, key=lambda each: (each.vhost, each.user))
            ],
        }
        document |= {name: section for name, section in sections.items() if section or name == "vhosts"}
    document |= _sections(topology)
    if not names_vhost:
        document = {name: _without_vhosts(section) for name, section in document.items()}
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _vhosts(topology: Topology) -> set[str]:
    named = {each.vhost for each in topology.exchanges} | {each.vhost for each in topology.queues}
    named |= {each.vhost for each in topology.bindings} | {each.vhost for each in topology.policies}
    return named | {each.vhost for each in topology.operator_policies} or {DEFAULT_VHOST}


def _sections(topology: Topology) -> dict[str, list[dict[str, Any]]]:
    return {
        "parameters": _sorted(
            {"component": OPERATOR_POLICY, "vhost": each.vhost, "name": each.name, "value": _rule(each)}
            for each in topology.operator_policies
        ),
        "policies": _sorted({"vhost": each.vhost, "name": each.name, **_rule(each)} for each in topology.policies),
        "exchanges": _sorted(_exchange(each) for each in topology.exchanges if not is_built_in(each.name)),
        "queues": _sorted(_queue(each) for each in topology.queues),
        "bindings": _sorted(_binding(each) for each in topology.bindings if each.source),
    }


def is_built_in(exchange: str) -> bool:
    """The default exchange, or one every broker makes by itself: not a part of what is wanted."""
    return exchange == "" or exchange.startswith(RESERVED)


def _exchange(exchange: Exchange) -> dict[str, Any]:
    return {
        "vhost": exchange.vhost,
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": _table(exchange.arguments, f'exchange "{exchange.name}"'),
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": _table(queue.arguments, f'queue "{queue.name}"'),
    }


def _binding(binding: Binding) -> dict[str, Any]:
    where = f'binding from "{binding.source}" to "{binding.destination}"'
    return {
        "vhost": binding.vhost,
        "source": binding.source,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
        "routing_key": binding.routing_key,
        "arguments": _table(binding.arguments, where),
    }


def _rule(policy: Policy) -> dict[str, Any]:
    return {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "priority": policy.priority,
        "definition": _table(policy.definition, f'policy "{policy.name}"'),
    }


def _permission(permission: Permission) -> dict[str, Any]:
    return {
        "user": permission.user,
        "vhost": permission.vhost,
        "configure": permission.configure,
        "write": permission.write,
        "read": permission.read,
    }


def _table(arguments: Arguments, where: str) -> dict[str, Any]:
    return {name: _plain(value, f"{where}, {name}") for name, value in sorted(arguments.items())}


def _plain(value: Any, where: str) -> Any:
    match value:
        case bool() | int() | str():
            return value
        case float() if value - value == 0:  # Neither infinite nor not a number.
            return value
        case Mapping():
            return _table(value, where)
        case list() | tuple():
            return [_plain(each, where) for each in value]
        case _:
            raise ConfigurationError(
                f"{where} is {value!r}, which a definitions file cannot hold.",
                hint="Arguments are text, numbers, booleans, lists and tables.",
            )


def _sorted(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=_order)


def _order(entry: Mapping[str, Any]) -> tuple[str, ...]:
    names = [str(entry.get(name, "")) for name in ("vhost", "name", "source", "destination_type", "destination")]
    return (*names, str(entry.get("routing_key", "")), json.dumps(entry, sort_keys=True))


def _without_vhosts(section: Any) -> Any:
    if not isinstance(section, list):
        return section
    return [{name: value for name, value in entry.items() if name != "vhost"} for entry in section]


def parse_definitions(text: str | bytes, *, vhost: str = DEFAULT_VHOST) -> Definitions:
    """What the file holds. `vhost`: where the entries of a file of one virtual host belong, which names none.

    Raises `ConfigurationError` that names the place in the file (`$.queues[3].arguments`) for what is no definitions
    file. Sections and fields that say nothing about messages are passed over.
    """
    return read_definitions(_loaded(text), vhost=vhost)


def read_definitions(document: object, *, vhost: str = DEFAULT_VHOST) -> Definitions:
    """As `parse_definitions`, of JSON loaded already: answers of the HTTP API under the names that a file has."""
    place = _Place(path="$", value=document)
    fields = place.table()
    only = vhost if _is_of_one_vhost(place) else None
    vhosts = [each.text("name") for each in place.entries("vhosts")]
    topology = Topology(
        exchanges=tuple(_read_exchange(each, only) for each in place.entries("exchanges")),
        queues=tuple(_read_queue(each, only) for each in place.entries("queues")),
        bindings=tuple(_read_binding(each, only) for each in place.entries("bindings")),
        policies=tuple(_read_policy(each, each, only) for each in place.entries("policies")),
        operator_policies=tuple(
            _read_policy(each, each.at("value"), only)
            for each in place.entries("parameters")
            if each.table().get("component") == OPERATOR_POLICY
        ),
        version=next((place.text(name) for name in _VERSIONS if fields.get(name) is not None), None),
    )
    _refuse_twins(topology)
    return Definitions(
        topology=topology,
        vhosts=tuple(vhosts) or tuple(sorted(_vhosts(topology) if only is None else {only})),
        default_types=dict(_default_types(place, vhost)),
        permissions=tuple(_read_permission(each) for each in place.entries("permissions")),
        users=tuple(each.table() for each in place.entries("users")),
    )


def _is_of_one_vhost(place: _Place) -> bool:
    # In a file of one virtual host, policies alone may name it (3.10), by the name it had there.
    entries = [entry for section in ("exchanges", "queues", "bindings") for entry in place.entries(section)]
    entries = entries or list(place.entries("policies"))
    return "vhosts" not in place.table() and all(entry.table().get("vhost") is None for entry in entries)


def _loaded(text: str | bytes) -> Any:
    try:
        told = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
        if len(told) > MAX_FILE_CHARS:
            raise ConfigurationError(f"The definitions file is larger than {MAX_FILE_CHARS} characters.")
        return json.loads(told, parse_constant=_refused)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"The definitions file is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"The definitions file is not JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        ) from None
    except (ValueError, RecursionError):  # A number of thousands of digits; tables in tables without end.
        raise ConfigurationError("The definitions file is JSON of a kind no broker writes.") from None


def _refused(constant: str) -> None:
    raise ValueError(constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A value in the file and where it stands there."""

    path: str
    value: Any

    def refuse(self, wanted: str) -> ConfigurationError:
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."  # noqa: PLR2004
        return ConfigurationError(
            f"{self.path} in the definitions file is {'missing' if self.value is None else shown}, not {wanted}.",
            hint="Export the file again with `rabbitmqctl export_definitions`.",
        )

    def at(self, name: str, default: Any = None) -> _Place:
        found = self.table().get(name)
        return _Place(path=f"{self.path}.{name}", value=default if found is None else found)

    def table(self) -> Mapping[str, Any]:
        if not isinstance(self.value, dict):
            raise self.refuse("a table")
        return self.value

    def entries(self, name: str) -> Iterator[_Place]:
        section = self.at(name, [])
        if not isinstance(section.value, list):
            raise section.refuse("a list")
        for index, entry in enumerate(section.value):
            place = _Place(path=f"{section.path}[{index}]", value=entry)
            place.table()
            yield place

    def text(self, name: str, default: str | None = None) -> str:
        place = self.at(name, default)
        if not isinstance(place.value, str):
            raise place.refuse("text")
        return place.value

    def flag(self, name: str, *, default: bool) -> bool:
        place = self.at(name, default)
        if not isinstance(place.value, bool):
            raise place.refuse("true or false")
        return place.value

    def whole(self, name: str) -> int:
        place = self.at(name, 0)
        if not isinstance(place.value, int) or isinstance(place.value, bool):
            raise place.refuse("a whole number")
        return place.value

    def arguments(self, name: str) -> dict[str, Any]:
        place = self.at(name, {})
        if isinstance(place.value, list) and all(_is_pair(each) for each in place.value):
            # So does `rabbitmqctl` write tables within tables, and some versions the empty one.
            return dict(place.value)
        return dict(place.table())

    def vhost(self, only: str | None) -> str:
        """`only`: the virtual host of a file that names none."""
        if only is not None:
            return only
        found = self.text("vhost", DEFAULT_VHOST)
        if not found:
            raise self.at("vhost").refuse("the name of a virtual host")
        return found


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)  # noqa: PLR2004


def _read_exchange(place: _Place, only: str | None) -> Exchange:
    return Exchange(
        name=place.text("name"),
        type=place.text("type", "direct"),
        durable=place.flag("durable", default=True),
        auto_delete=place.flag("auto_delete", default=False),
        internal=place.flag("internal", default=False),
        arguments=place.arguments("arguments"),
        vhost=place.vhost(only),
    )


def _read_queue(place: _Place, only: str | None) -> Queue:
    arguments = place.arguments("arguments")
    told = place.table().get("type")
    if "x-queue-type" not in arguments and told in (QueueType.QUORUM, QueueType.STREAM):
        arguments["x-queue-type"] = told
    return Queue(
        name=place.text("name"),
        durable=place.flag("durable", default=True),
        auto_delete=place.flag("auto_delete", default=False),
        arguments=arguments,
        vhost=place.vhost(only),
    )


def _read_binding(place: _Place, only: str | None) -> Binding:
    kind = place.text("destination_type", "queue")
    if kind not in ("queue", "exchange"):
        raise place.at("destination_type").refuse('"queue" or "exchange"')
    return Binding(
        source=place.text("source"),
        destination=place.text("destination"),
        routing_key=place.text("routing_key", ""),
        destination_type=kind,
        arguments={name: _void(value) for name, value in place.arguments("arguments").items()},
        vhost=place.vhost(only),
    )


def _void(value: object) -> object:
    """No value, which a headers exchange takes as "the header is there", is written by the broker as this text."""
    return None if value == "undefined" else value


def _read_policy(place: _Place, rule: _Place, only: str | None) -> Policy:
    return Policy(
        name=place.text("name"),
        pattern=rule.text("pattern"),
        definition=rule.arguments("definition"),
        apply_to=rule.text("apply-to", "all"),
        priority=rule.whole("priority"),
        vhost=place.vhost(only),
    )


def _read_permission(place: _Place) -> Permission:
    return Permission(
        user=place.text("user"),
        vhost=place.text("vhost"),
        configure=place.text("configure"),
        write=place.text("write"),
        read=place.text("read"),
    )


def _default_types(document: _Place, vhost: str) -> Iterator[tuple[str, str]]:
    for place in document.entries("vhosts"):
        told = place.at("default_queue_type", place.at("metadata", {}).at("default_queue_type").value).value
        if told in tuple(QueueType):
            yield place.text("name"), told
    told = document.at("metadata", {}).at("default_queue_type", document.at("default_queue_type").value).value
    if told in tuple(QueueType):
        yield vhost, told


def _refuse_twins(topology: Topology) -> None:
    named = {
        "queues": [(each.vhost, each.name) for each in topology.queues],
        "exchanges": [(each.vhost, each.name) for each in topology.exchanges],
    }
    for section, keys in named.items():
        seen: set[tuple[str, str]] = set()
        for index, key in enumerate(keys):
            if key in seen:
                raise ConfigurationError(
                    f'$.{section}[{index}] in the definitions file is a second "{key[1]}" in virtual host "{key[0]}".',
                    hint="A broker has one of each name; remove one.",
                )
            seen.add(key)
