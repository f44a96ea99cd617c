"""`wms-labels`: an HTTP service that knows nothing of queues. It prints a label for everything that goes out.

    uvicorn examples.event_bus.label_service:service --port 8081

It answers with the status that says what happened, and tells repeats by `webhook-id`: a label is printed once. It could
be written in any language.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from redrive.ingest import StandardWebhooks, Verified

LABEL = """\
<svg xmlns="http://www.w3.org/2000/svg" width="400" height="160">
  <rect width="400" height="160" fill="white" stroke="black"/>
  <text x="20" y="60" font-family="monospace" font-size="28">{sku}</text>
  <text x="20" y="110" font-family="monospace" font-size="28">{quantity} pcs</text>
</svg>
"""
TOLERANCE_MS = 300_000


async def labels(request: Request) -> Response:
    """204: printed, or nothing to print. 401: not from the bus. 422: no movement. 425: before its time."""
    body = await request.body()
    if not _is_signed(request, body):
        return Response("the signature does not hold", status_code=401)
    try:
        movement = json.loads(body)
        sku, quantity, kind = str(movement["sku"]), int(movement["quantity"]), movement["kind"]
    except (ValueError, KeyError, TypeError):
        return Response("no movement", status_code=422)
    if kind == "check-out":
        _print_label(request.headers["webhook-id"], sku=sku, quantity=quantity)
    return Response(status_code=204)


def _print_label(name: str, **fields: Any) -> None:
    folder = Path(os.environ.get("LABELS_FOLDER", "labels"))
    folder.mkdir(parents=True, exist_ok=True)
    shown = {key: str(value).replace("&", "&amp;").replace("<", "&lt;") for key, value in fields.items()}
    (folder / f"{name.replace('/', '_')}.svg").write_text(LABEL.format(**shown), "utf-8")


def _is_signed(request: Request, body: bytes) -> bool:
    """Whether one of LABELS_SECRETS signed it; everything is let in where there is none."""
    scheme = StandardWebhooks()
    keys = [scheme.key(secret) for secret in os.environ.get("LABELS_SECRETS", "").split()]
    now = int(request.headers.get("webhook-timestamp", "0") or 0) * 1_000
    return not keys or isinstance(
        scheme.verify(request.headers.raw, body, keys=keys, now=now, tolerance_ms=TOLERANCE_MS), Verified
    )


service = Starlette(routes=[Route("/labels", labels, methods=["POST"])])
