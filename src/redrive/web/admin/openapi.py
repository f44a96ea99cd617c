"""The OpenAPI 3.1 document, made from the table of operations."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import msgspec

from redrive.web.admin.answers import Problem
from redrive.web.admin.operations import JSON, OPERATIONS, Operation
from redrive.web.admin.problems import CODES, MEDIA_TYPE, STATUS_OF
from redrive.web.admin.streams import LINES

INTRO: Final = (
    "Dead letters, redrive jobs, queues and limits of one app. Every refusal is an RFC 9457 problem document whose "
    "type ends in a stable code. Every POST takes an Idempotency-Key, but an import, which may be repeated as it is, "
    "and the making of a token. OPTIONS of any path answers 204, without a token; a method that a path does not have, "
    "HEAD among them, 405. Both name its methods in Allow."
)
_REF: Final = "#/components/schemas/{name}"
_PROBLEM: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_MEANINGS: Final = {
    400: "The request cannot be read",
    401: "No good token",
    403: "The token's role does not reach so far",
    404: "Nothing is there",
    409: "It stands otherwise: an illegal move, not possible with this broker, or a request still being carried out",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A field or parameter is wrong",
    429: "Too many bad tokens from this address",
    503: "Store, broker or keys are away; come again after Retry-After",
}
assert {status for status, _ in CODES.values()} | set(STATUS_OF.values()) == {*_MEANINGS, 405, 500}


def document(*, root: str = "") -> dict[str, Any]:
    """The whole document. `root`: where the API is mounted."""
    types = [each for row in OPERATIONS for each in (row.query, row.body, row.answer) if each is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_REF)
    by_type = dict(zip(map(repr, [*types, Problem]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in OPERATIONS:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "redrive", "version": version("redrive"), "description": INTRO},
        "servers": [{"url": root or "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Operation, by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "tags": [row.path.split("/")[3]],
        "description": f"Needs the role {row.role}.",
        "parameters": [*_path_parameters(row), *_query_parameters(row, components), *_header_parameters(row)],
        "responses": _responses(row, by_type),
    }
    if row.takes_lines:
        found["requestBody"] = {"required": False, "content": {LINES: {"schema": {"type": "string"}}}}
    if row.body is not None:
        found["requestBody"] = {"required": False, "content": {JSON: {"schema": by_type[repr(row.body)]}}}
    return found


def _path_parameters(row: Operation) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": 1000}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in row.names]


def _query_parameters(row: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[row.query.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is there has a text; one that may be null is one that may be left out."""
    left = {name: value for name, value in schema.items() if name != "default"}
    options = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return options[0] if len(options) == 1 else left


def _header_parameters(row: Operation) -> list[dict[str, Any]]:
    if row.takes_key:
        text = 'A quoted string, e.g. "8e03978e-40d5": the same request with it is carried out once.'
        schema = {"type": "string", "pattern": '^"[a-zA-Z0-9_.:-]{1,200}"$'}
        return [{"name": "Idempotency-Key", "in": "header", "required": False, "description": text, "schema": schema}]
    if row.media_type == "text/event-stream":
        schema = {"type": "string", "pattern": "^[0-9a-f]{1,64}$"}
        return [{"name": "Last-Event-ID", "in": "header", "required": False, "schema": schema}]
    return []


def _responses(row: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    schema = by_type[repr(row.answer)]
    if row.media_type != JSON:
        content: dict[str, Any] = {row.media_type: {}}
    else:
        content = {row.media_type: {"schema": schema}}
    good: dict[str, Any] = {"description": row.summary, "content": content}
    if row.status == 202:  # noqa: PLR2004 - accepted
        good["headers"] = {"Location": {"schema": {"type": "string"}}}
    found: dict[str, Any] = {str(row.status): good}
    if row.media_type == "text/event-stream":
        found["204"] = {"description": "The job has ended, and Last-Event-ID has seen it end"}
    for status, meaning in _MEANINGS.items():
        if row.body is None and status in (413, 415) and row.method == "GET":
            continue
        found[str(status)] = {"description": meaning, "content": _PROBLEM}
    return found
