"""JSON Patch (RFC 6902) over a body, and how a body looks before and after. Pure: documents are never changed in place.

A patch is a list of operations, applied one after the other, all or none. A location is a JSON Pointer (RFC 6901).
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from redrive.errors import ConfigurationError

MAX_OPERATIONS: Final = 1_000
MAX_PATCH_BYTES: Final = 1_000_000
MAX_COPIED: Final = 200_000
"""Values that all copies of one patch may make: copies of copies would else double at each operation."""
MAX_DIFF_LINES: Final = 200

Path: TypeAlias = tuple[str, ...]

_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}
_INDEX: Final = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


class PatchRefused(Exception):
    """The patch does not apply to this document; the text says why, for a person. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step. `source` is what RFC 6902 calls "from"."""

    op: str
    path: Path
    value: Any = None
    source: Path = ()


Patch: TypeAlias = tuple[Operation, ...]


def parse_patch(text: str) -> Patch:
    """The operations of this JSON text. Raises `ConfigurationError` naming the operation (from 1) and what is wrong."""
    if len(text) > MAX_PATCH_BYTES:
        raise ConfigurationError(f"The patch has {len(text)} characters (maximum {MAX_PATCH_BYTES}).")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The patch is not JSON: {error}.", hint=_HINT) from None
    if not isinstance(document, list) or not document:
        raise ConfigurationError("A patch is a list of operations, at least one.", hint=_HINT)
    if len(document) > MAX_OPERATIONS:
        raise ConfigurationError(f"The patch has {len(document)} operations (maximum {MAX_OPERATIONS}).")
    return tuple(_operation(each, number) for number, each in enumerate(document, 1))


_HINT: Final = """Write for example [{"op": "replace", "path": "/postcode", "value": "10115"}] (RFC 6902)."""


def _operation(entry: Any, number: int) -> Operation:
    if not isinstance(entry, Mapping) or entry.get("op") not in _NEEDS:
        raise ConfigurationError(
            f"Operation {number} of the patch has no op that is known.", hint=f"Known: {', '.join(_NEEDS)}."
        )
    op = entry["op"]
    missing = [name for name in ("path", *_NEEDS[op]) if name not in entry]
    if missing:
        raise ConfigurationError(f'Operation {number} of the patch ("{op}") has no "{missing[0]}".', hint=_HINT)
    source = _pointer(entry["from"], number) if "from" in _NEEDS[op] else ()
    path = _pointer(entry["path"], number)
    if op == "move" and path[: len(source)] == source and path != source:
        raise ConfigurationError(f"Operation {number} of the patch moves a value into itself.")
    return Operation(op=op, path=path, value=entry.get("value"), source=source)


def _pointer(text: Any, number: int) -> Path:
    if not isinstance(text, str) or (text and not text.startswith("/")) or re.search(r"~(?![01])", text):
        raise ConfigurationError(
            f"Operation {number} of the patch: {text!r:.80} is no JSON Pointer.", hint='Write "/order/lines/0".'
        )
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def apply(patch: Patch, document: Any) -> Any:
    """The document after all operations. Raises `PatchRefused` where one of them does not fit.

    >>> apply(parse_patch('[{"op": "add", "path": "/a/-", "value": 2}]'), {"a": [1]})
    {'a': [1, 2]}
    """
    result = copy.deepcopy(document)
    copied = 0
    for number, each in enumerate(patch, 1):
        try:
            copied = _with_copies(each, result, copied)
            result = _step(each, result)
        except PatchRefused as refused:
            raise PatchRefused(f'operation {number} ("{each.op}"): {refused}') from None
        except RecursionError:
            raise PatchRefused(f'operation {number} ("{each.op}"): the document gets too deep') from None
    return result


def _with_copies(each: Operation, document: Any, copied: int) -> int:
    """How many values all copies have made with this one. Raises `PatchRefused` where they are too many."""
    if each.op == "copy":
        copied += _size(_at(document, each.source))
        if copied > MAX_COPIED:
            raise PatchRefused(f"the copies make more than {MAX_COPIED} values")
    return copied


def _size(document: Any) -> int:
    """How many values it has, itself included."""
    count, waiting = 0, [document]
    while waiting:
        each = waiting.pop()
        count += 1
        if isinstance(each, dict | list):
            waiting += each.values() if isinstance(each, dict) else each
    return count


def _step(each: Operation, document: Any) -> Any:
    match each.op:
        case "add":
            return _add(document, each.path, copy.deepcopy(each.value))
        case "remove":
            return _remove(document, each.path)[0]
        case "replace":
            _at(document, each.path)
            return _put(document, each.path, copy.deepcopy(each.value))
        case "move":
            left, value = _remove(document, each.source)
            return _add(left, each.path, value)
        case "copy":
            return _add(document, each.path, copy.deepcopy(_at(document, each.source)))
        case _:
            if not _equal(_at(document, each.path), each.value):
                raise PatchRefused(f"{_shown(each.path)} has another value")
            return document


def _at(document: Any, path: Path) -> Any:
    found = document
    for depth, part in enumerate(path):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and _INDEX.fullmatch(part) and int(part) < len(found):
            found = found[int(part)]
        else:
            raise PatchRefused(f"{_shown(path[: depth + 1])} is not there")
    return found


def _parent(document: Any, path: Path) -> Any:
    found = _at(document, path[:-1])
    if not isinstance(found, dict | list):
        raise PatchRefused(f"{_shown(path[:-1])} is neither an object nor a list")
    return found


def _add(document: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    parent, last = _parent(document, path), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif last == "-":
        parent.append(value)
    elif _INDEX.fullmatch(last) and int(last) <= len(parent):
        parent.insert(int(last), value)
    else:
        raise PatchRefused(f"{_shown(path)} is no place in the list")
    return document


def _put(document: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    parent = _parent(document, path)
    parent[path[-1] if isinstance(parent, dict) else int(path[-1])] = value
    return document


def _remove(document: Any, path: Path) -> tuple[Any, Any]:
    value = _at(document, path)
    if not path:
        return None, value
    parent = _parent(document, path)
    del parent[path[-1] if isinstance(parent, dict) else int(path[-1])]
    return document, value


def _equal(one: Any, two: Any) -> bool:
    """As JSON compares: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_equal(one[name], two[name]) for name in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_equal, one, two))
    return one == two and (type(one) is type(two) or {type(one), type(two)} == {int, float})


def _shown(path: Path) -> str:
    return '"' + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path) + '"'


# ---------------------------------------------------------------------------------------------------- bodies


def edited_body(patch: Patch, body: bytes) -> bytes:
    """The body after the patch, as compact JSON in UTF-8. Raises `PatchRefused`, also where the body is no JSON."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise PatchRefused("its body is not JSON") from None
    edited = apply(patch, document)
    try:
        return json.dumps(edited, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise PatchRefused("the document gets too deep") from None


def body_diff(before: bytes, after: bytes) -> tuple[str, ...]:
    """What changed, line by line, as `diff -u` writes it; at most `MAX_DIFF_LINES`."""
    lines = difflib.unified_diff(_pretty(before), _pretty(after), lineterm="", n=1)
    return tuple(_first(lines, MAX_DIFF_LINES))[2:]


def _pretty(body: bytes) -> list[str]:
    return json.dumps(json.loads(body), ensure_ascii=False, indent=2).splitlines()


def _first(lines: Iterator[str], count: int) -> Iterator[str]:
    for _, line in zip(range(count), lines, strict=False):
        yield line
