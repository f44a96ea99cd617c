"""The same API with Redis before PostgreSQL and before FerretDB: the tests of the other modules, in these stores."""

from __future__ import annotations

import pytest

from redrive.core.access import RedactRule, Role
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE
from tests import redis
from tests.mongodb.server import database_url
from tests.redis import empty_server
from tests.web import test_letters, test_once, test_openapi, test_redaction, test_removing, test_sending, test_transfer
from tests.web.conftest import Api, put_letters
from tests.web.test_once import ask

__all__ = ["ask"]


@pytest.fixture
def url() -> str:
    return empty_server(redis.OLD).url


@pytest.fixture(params=["postgresql", "mongodb"])
def store(request: pytest.FixtureRequest) -> dict[str, str]:
    found = request.getfixturevalue("postgres") if request.param == "postgresql" else database_url()
    return {"store": found}


@pytest.fixture
def clock() -> SystemClock:
    """Claims in PostgreSQL go by the server's clock."""
    return SystemClock()


@pytest.fixture
def redact() -> tuple[RedactRule, ...]:
    return test_redaction.RULES


test_every_answer_is_of_its_schema = test_openapi.test_answers_are_what_the_schemas_say_and_nothing_else

test_a_walk = test_letters.test_a_walk_sees_every_letter_once
test_filters = test_letters.test_filters_and_parameters_hold_together
test_hostile_text = test_letters.test_hostile_text_is_data
test_reviews = test_letters.test_reviews_are_audited_and_a_repeat_changes_nothing
test_a_group = test_letters.test_a_group_is_acknowledged_and_ignored
test_limits = test_letters.test_limits_are_set_shown_and_reset

test_sent = test_sending.test_everything_asked_for_is_in_the_message
test_exact = test_transfer.test_what_is_exported_is_imported_exactly
test_pruned = test_removing.test_a_prune_spares_what_nobody_has_decided_about
test_archived = test_removing.test_what_is_pruned_into_an_archive_comes_back
test_erased = test_removing.test_an_erasure_takes_the_person_from_store_and_archives

test_once_on_another_server = test_once.test_another_server_gives_the_same_answer
test_a_refusal_once = test_once.test_a_refusal_is_an_answer_too
test_in_flight = test_once.test_while_the_first_is_carried_out_the_second_is_told
test_ours = test_once.test_a_failure_of_ours_is_no_answer
test_no_queue = test_once.test_keys_make_no_queue

test_shown = test_redaction.test_a_letter_is_shown_without_what_is_hidden
test_readable = test_redaction.test_what_is_not_hidden_stays_readable


async def test_every_write_is_recorded(api: Api) -> None:
    for role in (Role.OPERATOR, Role.ADMIN, Role.OPERATOR):
        await api.post(f"/api/v1/queues/{QUEUE}/pause", role=role)
    first = (await api.get("/api/v1/audit", Role.ADMIN, params={"limit": 2})).json()
    rest = (await api.get("/api/v1/audit", Role.ADMIN, params={"limit": 2, "cursor": first["cursor"]})).json()

    assert [("operator-ann", 200), ("admin-ann", 200), ("operator-ann", 200)] == [
        (each["actor"], each["status"]) for each in (*first["writes"], *rest["writes"])
    ]


async def test_a_job_is_made_once_and_carried_out(api: Api, app: object) -> None:
    ids = await put_letters(app, 3)
    headers = {"idempotency-key": '"job"'}
    wanted = {"selection": {"ids": ids}, "options": {"even_if": ["dedup-expired"]}}

    made = [await api.post("/api/v1/jobs", wanted, headers=headers) for _ in range(2)]
    path = made[0].headers["location"]
    async with api.client.stream(
        "GET", f"{path}/events", headers={"authorization": f"Bearer {api.secrets[Role.VIEWER]}"}
    ) as stream:
        lines = [line async for line in stream.aiter_lines()]

    assert made[0].json() == made[1].json()
    assert "event: end" in lines
    assert 3 == (await api.get(path)).json()["job"]["sent"]


async def test_what_failed_in_a_queue_of_this_app_is_collected(api: Api) -> None:
    """BullMQ keeps it under the queue's own name."""
    path = f"/api/v1/queues/{QUEUE}"

    looked = await api.get(f"{path}/collectable", Role.OPERATOR)
    begun = await api.post(f"{path}/collect")

    assert (200, 202) == (looked.status_code, begun.status_code)
