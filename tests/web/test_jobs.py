"""Redrive jobs over HTTP: once per key, followed as events, ended by a person."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from redrive.core.access import Role
from redrive.core.letters.selection import Selection
from redrive.core.redrive import JobState
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE, message
from redrive.web.admin import AdminApi, Guard
from redrive.web.admin.keys import KEPT_MS
from redrive.web.admin.runners import MAX_RUNNING
from redrive.web.admin.streams import HEARTBEAT_MS, MAX_STREAMS
from tests.web.conftest import Api, code, put_letters

JOBS = "/api/v1/jobs"


def key(text: str) -> dict[str, str]:
    return {"idempotency-key": f'"{text}"'}


async def waiting(app: Redrive) -> list[str]:
    return sorted(found.id for found in await app.backend.broker.peek(QUEUE, limit=1_000))


async def ended(api: Api, job_id: str, clock: FakeClock) -> dict[str, Any]:
    """The job once it has ended; its runner is let run."""
    for _ in range(1_000):
        found = (await api.get(f"{JOBS}/{job_id}")).json()
        if found["job"]["state"] in ("done", "aborted", "failed"):
            return dict(found)
        await clock.advance(500)
        await asyncio.sleep(0)
    raise AssertionError(found)


async def test_a_job_is_planned_accepted_carried_out_and_told(api: Api, app: Redrive, clock: FakeClock) -> None:
    ids = await put_letters(app, 3)
    ask = {"selection": {"ids": [*ids, "dl_none"]}, "note": "fixed"}

    plan = (await api.post(f"{JOBS}/plan", ask, role=Role.VIEWER)).json()
    before = await waiting(app)
    answer = await api.post(JOBS, ask)
    job = await ended(api, answer.json()["job"]["id"], clock)
    items = (await api.get(f"{answer.headers['location']}/items", params={"limit": 2})).json()
    rest = (await api.get(f"{answer.headers['location']}/items", params={"after": items["after"]})).json()

    assert ((3, ["dl_none"]), []) == ((plan["send"], plan["missing"]), before)
    assert (202, ["dl_none"]) == (answer.status_code, answer.json()["missing"])
    assert ("done", 3, "operator-ann", "fixed") == tuple(
        job["job"][name] for name in ("state", "sent", "actor", "note")
    )
    assert ids == [item["letter_id"] for item in items["items"] + rest["items"]]
    assert None is rest["after"]
    assert 3 == len(await waiting(app))
    assert "request_key" not in json.dumps(job)


async def test_what_is_refused_has_a_code_and_is_counted(api: Api, app: Redrive, clock: FakeClock) -> None:
    await put_letters(app, 2, message=message("m", key="k"))
    ask = {"selection": {"ids": ["dl_0002"]}}
    told = {**ask, "options": {"even_if": ["out-of-order"], "target_queue": "gone"}}

    plan = (await api.post(f"{JOBS}/plan", ask, role=Role.VIEWER)).json()
    elsewhere = (await api.post(f"{JOBS}/plan", told, role=Role.VIEWER)).json()
    answer = await api.post(JOBS, ask)
    job = await ended(api, answer.json()["job"]["id"], clock)
    items = (await api.get(f"{answer.headers['location']}/items")).json()["items"]
    odd = await api.post(JOBS, {**ask, "options": {"even_if": ["gone"]}})

    assert {"out-of-order": 1} == plan["refusals"] == job["refusals"]
    assert ["out-of-order"] == [each["code"] for each in plan["skipped"]] == [each["code"] for each in items]
    assert (1, False) == (elsewhere["send"], elsewhere["queues"][0]["target_exists"])
    assert 422 == odd.status_code


async def test_a_double_click_makes_one_job(api: Api, app: Redrive, clock: FakeClock) -> None:
    """Case RD-01: two at the same instant, then one that overlaps, then the first once more with its key."""
    [one, two, three] = await put_letters(app, 3)
    first = {"selection": {"ids": [one, two]}}

    twice = await asyncio.gather(*[api.post(JOBS, first, headers=key("click")) for _ in range(2)])
    made = next(answer for answer in twice if answer.status_code == 202)
    other = await api.post(JOBS, {"selection": {"ids": [one, one, three]}}, headers=key("other"))
    jobs = [await ended(api, answer.json()["job"]["id"], clock) for answer in (made, other)]
    again = await api.post(JOBS, first, headers=key("click"))

    assert {(202, made.json()["job"]["id"])} >= {
        (answer.status_code, answer.json()["job"]["id"]) for answer in twice if answer.status_code != 409
    }
    assert all(code(answer) == (409, "key_in_use") for answer in twice if answer.status_code == 409)
    assert [2, 1] == [job["job"]["sent"] for job in jobs]
    assert [one] == [skip["id"] for skip in jobs[1]["skipped"]]
    assert again.json() == made.json()
    assert 3 == len(await waiting(app))
    assert 2 == len((await api.get(JOBS)).json()["jobs"])
    assert {"create_job"} == {each["operation"] for each in api.named("api.written")}


async def test_a_key_holds_over_a_restart_and_for_its_request_only(api: Api, app: Redrive, clock: FakeClock) -> None:
    ids = await put_letters(app, 2)
    ask = {"selection": {"ids": ids[:1]}}
    made = (await api.post(JOBS, ask, headers=key("k"))).json()["job"]["id"]
    await ended(api, made, clock)

    # Another process: nothing of the first one's memory.
    api.client._transport.app = AdminApi(app, Guard(clock, app.events, tokens=api.tokens))
    again = await api.post(JOBS, ask, headers=key("k"))
    api.client._transport.app = AdminApi(app, Guard(clock, app.events, tokens=api.tokens))
    other = await api.post(JOBS, {"selection": {"ids": ids[1:]}}, headers=key("k"))
    theirs = await api.post(JOBS, ask, headers=key("k"), role=Role.ADMIN)

    assert (202, made) == (again.status_code, again.json()["job"]["id"])
    assert (422, "key_reused") == code(other)
    assert made != theirs.json()["job"]["id"]


async def test_a_key_with_a_filter_of_a_moving_time_is_the_same_request(
    api: Api, app: Redrive, clock: FakeClock
) -> None:
    await put_letters(app, 2)
    ask = {"selection": {"filter": f"queue:{QUEUE} since:2h"}}
    made = (await api.post(JOBS, ask, headers=key("k"))).json()["job"]["id"]
    await ended(api, made, clock)
    api.client._transport.app = AdminApi(app, Guard(clock, app.events, tokens=api.tokens))

    assert made == (await api.post(JOBS, ask, headers=key("k"))).json()["job"]["id"]


@pytest.mark.parametrize("text", ["bare", '"', '""', '"a', "'a'", '"é"', '"a" ; b=1', '"' + "x" * 256 + '"'])
async def test_a_key_that_is_no_quoted_string_is_refused(api: Api, text: str) -> None:
    answer = await api.post(f"{JOBS}/plan", {"all": True}, headers={"idempotency-key": text.encode()})

    assert (400, "malformed") == code(answer)


async def test_other_posts_are_carried_out_once_by_their_key(api: Api, app: Redrive, clock: FakeClock) -> None:
    [letter_id] = await put_letters(app, 1)
    ask = {"selection": {"ids": [letter_id]}}
    where = "/api/v1/letters/close"

    first = await api.post(where, ask, headers=key("k"))
    again = await api.post(where, ask, headers=key("k"))
    other = await api.post(where, {**ask, "note": "x"}, headers=key("k"))
    elsewhere = await api.post("/api/v1/letters/restore", ask, headers=key("k"))
    await clock.advance(KEPT_MS)
    later = await api.post(where, ask, headers=key("k"))

    assert (1, first.json()) == (first.json()["changed"], again.json())
    assert [(422, "key_reused")] * 2 == [code(other), code(elsewhere)]
    assert 0 == later.json()["changed"]
    assert 2 == len(api.named("api.written"))


async def test_a_job_is_aborted_and_resumed(api: Api, app: Redrive, clock: FakeClock) -> None:
    await put_letters(app, 5)
    made = (await api.post(JOBS, {"all": True, "options": {"rate_per_s": 0.01}})).json()["job"]["id"]
    where = f"{JOBS}/{made}"

    aborted = await api.post(f"{where}/abort", {"note": "wrong ones"})
    twice = await api.post(f"{where}/abort")
    resumed = await api.post(f"{where}/resume")
    for _ in range(1_000):
        await clock.advance(10_000)
        await asyncio.sleep(0)
        if (await api.get(where)).json()["job"]["state"] == "done":
            break
    over = await api.post(f"{where}/resume")

    assert ("aborted", "aborted by operator-ann: wrong ones") == tuple(
        aborted.json()["job"][name] for name in ("state", "error")
    )
    assert [(409, "illegal_transition")] * 2 == [code(twice), code(over)]
    assert (202, f"{JOBS}/{made}") == (resumed.status_code, resumed.headers["location"])
    assert 5 == (await api.get(where)).json()["job"]["sent"]


async def test_resumed_by_many_clicks_a_job_takes_one_place(api: Api, app: Redrive, clock: FakeClock) -> None:
    """Those before it has begun and those while it runs; another job has its place meanwhile."""
    [*ids, other] = await put_letters(app, 4)
    slow = {"selection": {"ids": ids}, "options": {"rate_per_s": 0.0001}}
    made = (await api.post(JOBS, slow)).json()["job"]["id"]
    await api.post(f"{JOBS}/{made}/pause")

    for _ in range(3):
        clicks = await asyncio.gather(*[api.post(f"{JOBS}/{made}/resume") for _ in range(5)])
        assert {(202, made)} == {(click.status_code, click.json()["job"]["id"]) for click in clicks}
    done = await ended(api, (await api.post(JOBS, {"selection": {"ids": [other]}})).json()["job"]["id"], clock)
    stored = await app.backend.jobs.get(made)

    assert ("done", 1) == (done["job"]["state"], done["job"]["sent"])
    assert JobState.RUNNING == stored.state
    assert 1 == len([each for each in api.named("redrive.job_changed") if each["state"] == "paused"])


async def test_a_resume_soon_after_a_pause_is_not_lost(api: Api, app: Redrive, clock: FakeClock) -> None:
    """The runner that was stopped has not seen it yet."""
    await put_letters(app, 3)
    made = (await api.post(JOBS, {"all": True, "options": {"rate_per_s": 0.5}})).json()["job"]["id"]
    await until(clock, lambda: api.named("redrive.sent"))

    paused = await api.post(f"{JOBS}/{made}/pause")
    resumed = await api.post(f"{JOBS}/{made}/resume")
    done = await ended(api, made, clock)

    assert ["paused"] * 2 == [answer.json()["job"]["state"] for answer in (paused, resumed)]
    assert ("done", 3) == (done["job"]["state"], done["job"]["sent"])


async def test_an_abort_takes_a_resume_that_waits_for_a_place_back(api: Api, app: Redrive, clock: FakeClock) -> None:
    [last, *ids] = await put_letters(app, 2 * MAX_RUNNING + 1)
    pairs = zip(ids[::2], ids[1::2], strict=True)
    slow = [{"selection": {"ids": pair}, "options": {"rate_per_s": 0.01}} for pair in pairs]
    made = (await Service(app).redrive(Selection(ids=(last,)), actor="ann", run=False)).job.id
    await api.post(f"{JOBS}/{made}/pause")
    for ask in slow:
        await api.post(JOBS, ask)
    await until(clock, lambda: len(api.named("redrive.sent")) == MAX_RUNNING)

    await api.post(f"{JOBS}/{made}/resume")
    await api.post(f"{JOBS}/{made}/abort")
    for job in (await api.get(JOBS)).json()["jobs"]:
        if job["state"] == "running":
            await api.post(f"{JOBS}/{job['id']}/abort")
    await until(clock, lambda: not api.api._runners.tasks)

    assert "aborted" == (await api.get(f"{JOBS}/{made}")).json()["job"]["state"]


async def test_a_job_that_meets_a_bug_has_failed_is_told_and_goes_on_once_resumed(
    api: Api, app: Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    [one, two] = await put_letters(app, 2)

    async def broken(*given: Any) -> Any:
        raise KeyError("card 4111")

    with monkeypatch.context() as patched:
        patched.setattr(app.backend.ledger, "forward", broken)
        made = (await api.post(JOBS, {"selection": {"ids": [one]}})).json()["job"]["id"]
        await clock.run_until(lambda: not api.api._runners.tasks)
        failed = (await api.get(f"{JOBS}/{made}")).json()
        first = api.named("api.failed")
        await api.post(f"{JOBS}/{made}/resume")
        await clock.run_until(lambda: not api.api._runners.tasks)
        second = api.named("api.failed")[1:]
    other = await ended(api, (await api.post(JOBS, {"selection": {"ids": [two]}})).json()["job"]["id"], clock)
    resumed = await api.post(f"{JOBS}/{made}/resume")
    done = await resumed_to_its_end(api, made, clock)

    assert ("failed", "a bug ended its runner: KeyError") == (failed["job"]["state"], failed["job"]["error"])
    assert [{"operation": "create_job", "error_type": "KeyError"}] == first
    assert [{"operation": "resume_job", "error_type": "KeyError"}] == second
    assert 1 == other["job"]["sent"]
    assert (202, "done", 1) == (resumed.status_code, done["state"], done["sent"])


async def resumed_to_its_end(api: Api, job_id: str, clock: FakeClock) -> dict[str, Any]:
    await clock.run_until(lambda: not api.api._runners.tasks)
    return dict((await api.get(f"{JOBS}/{job_id}")).json()["job"])


async def test_closing_the_api_lets_go_of_its_jobs(api: Api, app: Redrive) -> None:
    await put_letters(app, 5)
    made = (await api.post(JOBS, {"all": True, "options": {"rate_per_s": 0.01}})).json()["job"]["id"]
    await asyncio.sleep(0)

    await api.api.close()
    taken = await app.backend.jobs.acquire(None, owner="next", lease_ms=1_000)

    assert (made, JobState.RUNNING) == (taken.id, taken.state)


# ---------------------------------------------------------------------------------------------------- events


class Listener:
    """One client of an event stream, over ASGI: httpx would wait for the end of it."""

    def __init__(self, api: Api, job_id: str, last_id: str | None = None) -> None:
        headers = [(b"authorization", f"Bearer {api.secrets[Role.VIEWER]}".encode())]
        headers += [] if last_id is None else [(b"last-event-id", last_id.encode())]
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": "GET",
            "path": f"{JOBS}/{job_id}/events",
            "raw_path": f"{JOBS}/{job_id}/events".encode(),
            "query_string": b"",
            "headers": headers,
            "client": ("192.0.2.1", 1),
        }
        self.gone = asyncio.Event()
        self.status = 0
        self.text = ""
        self.task = asyncio.create_task(api.api(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Any) -> None:
        self.status = event.get("status", self.status)
        self.text += event.get("body", b"").decode()

    def events(self) -> list[tuple[str, str, dict[str, Any]]]:
        found = []
        for block in self.text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
            if "event" in lines:
                found.append((lines["event"], lines.get("id", ""), json.loads(lines["data"])))
        return found


async def until(clock: FakeClock, condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await clock.advance(500)
        await asyncio.sleep(0.001)  # sleep: threads of the store answer meanwhile
    raise AssertionError("it never came true")


async def test_a_stream_tells_progress_and_ends_with_the_job(api: Api, app: Redrive, clock: FakeClock) -> None:
    await put_letters(app, 3)
    made = (await api.post(JOBS, {"all": True, "options": {"rate_per_s": 0.5}})).json()["job"]["id"]
    listener = Listener(api, made)
    await until(clock, listener.task.done)

    names = [name for name, _, _ in listener.events()]
    sent = [document["sent"] for _, _, document in listener.events()]
    assert (200, "end") == (listener.status, names[-1])
    assert {"progress"} == set(names[:-1])
    assert (sorted(sent), 3) == (sent, sent[-1])

    last_id = listener.events()[-1][1]
    back = Listener(api, made, last_id=last_id)
    await back.task
    assert (204, "") == (back.status, back.text)


async def test_a_silent_stream_beats_and_ends_when_its_client_or_server_goes(
    api: Api, app: Redrive, clock: FakeClock
) -> None:
    await put_letters(app, 3)
    made = (await api.post(JOBS, {"all": True, "options": {"rate_per_s": 0.0001}})).json()["job"]["id"]
    one, two = Listener(api, made), Listener(api, made)
    await until(clock, lambda: ": still here" in one.text)
    heard = len(one.events())

    one.gone.set()
    await one.task
    assert 1 == len(api.api._streams.open)
    api.api._streams.is_stopping = True
    await until(clock, two.task.done)

    assert 1 <= heard <= HEARTBEAT_MS
    assert set() == api.api._streams.open


async def test_streams_are_bounded(api: Api, app: Redrive, clock: FakeClock) -> None:
    await put_letters(app, 1)
    made = (await api.post(JOBS, {"all": True, "options": {"rate_per_s": 0.0001}})).json()["job"]["id"]
    await api.post(f"{JOBS}/{made}/abort")
    running = (await api.post(JOBS, {"all": True})).json()["job"]["id"]
    api.api._streams.open |= {object() for _ in range(MAX_STREAMS)}

    assert (404, "not_found") == code(await api.get(f"{JOBS}/rd_none/events"))
    assert (503, "too_many_streams") == code(await api.get(f"{JOBS}/{running}/events"))
