"""Tokens over HTTP: who may come; made, listed and revoked as `redrive token` does, in the same file of this server."""

from __future__ import annotations

import asyncio
from typing import Any

from redrive.core.units import rfc3339
from redrive.errors import UnsupportedError
from redrive.web.admin.auth.tokens import TokenFile
from redrive.web.admin.call import Call


async def list_tokens(call: Call) -> Any:
    """Names and roles; what they show when they come is not kept."""
    found = await asyncio.to_thread(_file(call).tokens)
    rows = [{"name": each.name, "role": str(each.role), "created_at": each.created_at or None} for each in found]
    return {"tokens": rows}


async def create_token(call: Call) -> Any:
    """Make one; this answer is the only time it is shown. Killed before the answer, it may be there: revoke it."""
    body, file = call.body, _file(call)
    secret = await asyncio.to_thread(file.add, body.name, body.role, created_at=rfc3339(call.now))
    return {"name": body.name, "role": str(body.role), "token": secret}


async def revoke_token(call: Call) -> Any:
    """From the next request on nobody gets in by it."""
    await asyncio.to_thread(_file(call).revoke, call.path["token"])
    return {"revoked": call.path["token"]}


def _file(call: Call) -> TokenFile:
    if call.tokens is None:
        raise UnsupportedError("This API keeps no tokens: who may come is decided elsewhere.")
    return call.tokens
