"""Redriving with an edited body: the copy is changed, the letter is not, and what does not fit is not sent."""

from __future__ import annotations

import pytest

from redrive.core.letters.redriven import HEADER_EDITED
from redrive.core.letters.selection import Selection
from redrive.core.redrive import JobOptions
from redrive.errors import ConfigurationError
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.samples import QUEUE, letter, message

pytestmark = pytest.mark.asyncio
EDIT = '[{"op": "test", "path": "/plz", "value": "x"}, {"op": "replace", "path": "/plz", "value": "10115"}]'


async def test_copies_are_edited_and_what_does_not_fit_stays(app: Redrive, service: Service) -> None:
    bodies = {"dl_a": b'{"plz":"x","n":1}', "dl_b": b'{"plz":"y"}', "dl_c": b"\xff"}
    await app.backend.letters.put([letter(name, message=message(name, body=body)) for name, body in bodies.items()])
    options = JobOptions(edit=EDIT)

    plan = await service.plan(Selection(queue=QUEUE), options)
    view = await service.redrive(Selection(queue=QUEUE), options, actor="ann")
    sent = await app.backend.broker.peek(QUEUE, limit=10)

    assert (1, 2, 1) == (plan.send, plan.skip, len(plan.edits))
    assert '+  "plz": "10115",' in plan.edits[0].diff
    assert (1, 2) == (view.job.counts.sent, view.job.counts.skipped)
    assert {"dl_b", "dl_c"} == {skip.letter_id for skip in view.skipped}
    assert all("the edit does not fit" in skip.why for skip in view.skipped)
    assert [(b'{"plz":"10115","n":1}', "dl_a", True)] == [
        (each.body, each.key, each.headers[HEADER_EDITED]) for each in sent
    ]
    assert bodies["dl_a"] == (await service.letter("dl_a")).letter.message.body


async def test_what_is_no_patch_makes_no_job(app: Redrive, service: Service) -> None:
    await app.backend.letters.put([letter("dl_a")])

    with pytest.raises(ConfigurationError, match="not JSON"):
        await service.redrive(Selection(queue=QUEUE), JobOptions(edit="nonsense"), actor="ann")

    assert not await service.jobs()
