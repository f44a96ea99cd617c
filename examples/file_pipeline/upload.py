"""`PUT /files/<name>`: keeps the bytes, publishes the command, and answers once both are durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from .files import MAX_FILE_BYTES, Storage

if TYPE_CHECKING:
    from redrive import Redrive


def upload_app(app: Redrive, storage: Storage) -> Starlette:
    """The ASGI app that is mounted on `/files`."""

    async def put(request: Request) -> JSONResponse:
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > MAX_FILE_BYTES:
                return JSONResponse({"error": f"more than {MAX_FILE_BYTES} bytes"}, status_code=413)
        name = request.path_params["name"]
        file_id = storage.put(name, bytes(content))
        correlation_id = request.headers.get("x-correlation-id") or f"upload-{file_id}"
        await submit(app, file_id, name, correlation_id=correlation_id)
        return JSONResponse({"fileId": file_id, "correlationId": correlation_id}, status_code=202)

    async def reprocess(request: Request) -> JSONResponse:
        file_id = request.path_params["file_id"]
        if not storage.path(file_id).is_file():
            return JSONResponse({"error": "no such file"}, status_code=404)
        name = request.query_params.get("name", file_id)
        await submit(app, file_id, name, correlation_id=f"again-{file_id}", key=f"commands.file.reprocess.{file_id}")
        return JSONResponse({"fileId": file_id}, status_code=202)

    routes = [
        Route("/{name}", put, methods=["PUT"]),
        Route("/{file_id:str}/reprocess", reprocess, methods=["POST"]),
    ]
    return Starlette(routes=routes)


async def submit(
    app: Redrive, file_id: str, name: str, *, correlation_id: str, key: str = "commands.upload.file"
) -> None:
    """Publish the command that starts the pipeline. Returns when it is durable."""
    await app.publish(
        key,
        {"fileId": file_id, "name": name},
        exchange="domain.commands",
        type=key,
        correlation_id=correlation_id,
    )
