"""file-pipeline: uploaded files are validated, thumbnailed and text-extracted; a projection and an audit log are kept.

    PUT /files/<name> ─> domain.commands ─> q.upload.commands ─> files.uploaded.<kind>
    files.uploaded.*  ─> q.validator ─> files.validated.<kind> or files.rejected.<kind>
    files.validated.* ─> q.thumbnail, q.extractor ─> processing.<what>.<how it ended>
    #                 ─> q.projection, q.audit;   processing.#, files.rejected.* ─> q.notification

Each queue has a retry queue of its own (15 s); after 3 attempts a message is parked in `q.X.dlq`.

`redrive up examples.file_pipeline:app` serves the upload and runs every consumer.
"""

from __future__ import annotations

import os
from pathlib import Path

from redrive import Fixed, Redrive, Retry, Rule, retry_per_queue

from . import readmodel, steps
from .files import Storage
from .logs import subscribe_log
from .upload import upload_app

COMMANDS, EVENTS = "domain.commands", "domain.events"

BOUND: dict[str, dict[str, str | list[str]]] = {
    "q.upload.commands": {COMMANDS: ["commands.upload.#", "commands.file.reprocess.*"]},
    "q.validator": {EVENTS: "files.uploaded.*"},
    "q.thumbnail": {EVENTS: "files.validated.*"},
    "q.extractor": {EVENTS: "files.validated.*"},
    "q.projection": {EVENTS: "#"},
    "q.notification": {EVENTS: ["processing.#", "files.rejected.*"]},
    "q.audit": {EVENTS: "#"},
}
MAX_ATTEMPTS = 3

delay = f"{os.environ.get('PIPELINE_RETRY_DELAY_MS', '15000')}ms"
topology = retry_per_queue(BOUND, delay=delay, safe=os.environ.get("PIPELINE_SAFE") == "1")
storage = Storage(Path(os.environ.get("PIPELINE_FILES", "files")))

app = Redrive("file-pipeline", broker=os.environ.get("REDRIVE_BROKER", "sqlite:///file_pipeline.db"), topology=topology)

policy = Retry(max_attempts=MAX_ATTEMPTS, backoff=Fixed(delay))
rules = [Rule(steps.Unreadable, "transient"), Rule(FileNotFoundError, "transient", "FILE_NOT_THERE")]

HANDLERS = {
    "q.upload.commands": steps.accept(storage),
    "q.validator": steps.validate(storage),
    "q.thumbnail": steps.thumbnail(storage),
    "q.extractor": steps.extract(storage),
    "q.projection": readmodel.project,
    "q.notification": readmodel.notify,
    "q.audit": readmodel.audit,
}
for queue, handler in HANDLERS.items():
    app.consumer(queue, retry=policy, breaker=None, rules=rules)(handler)

subscribe_log(app)
app.mount("/files", upload_app(app, storage))
