"""The table of system B, status by status."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.signals import Requeue
from redrive.push import outcome_of_status, status_handler

NOW = 1_764_300_000_000
FINAL_4XX = [status for status in range(400, 500) if status not in {409, 425, 429}]


@pytest.mark.parametrize("status", range(200, 300))
def test_2xx_is_done(status: int) -> None:
    assert outcome_of_status(status, now=NOW) is None


@pytest.mark.parametrize("status", [*(s for s in range(400, 600) if s != 425), 100, 199, 301, 302, 304, 600, 999, 0])
def test_every_other_status_is_a_failed_attempt(status: int) -> None:
    outcome = outcome_of_status(status, now=NOW)

    assert isinstance(outcome, Failure)
    assert (FailureKind.TRANSIENT, f"HTTP_{status}", None) == (outcome.kind, outcome.code, outcome.error_type)


@pytest.mark.parametrize("status", FINAL_4XX)
def test_other_4xx_are_final_where_the_consumer_says_so(status: int) -> None:
    outcome = outcome_of_status(status, now=NOW, gives_up_on_4xx=True)

    assert isinstance(outcome, Failure)
    assert FailureKind.PERMANENT is outcome.kind


@pytest.mark.parametrize("status", [409, 429, 500, 501, 503, 599, 302])
def test_conflict_rate_limit_and_server_errors_are_never_final(status: int) -> None:
    outcome = outcome_of_status(status, now=NOW, gives_up_on_4xx=True)

    assert isinstance(outcome, Failure)
    assert FailureKind.TRANSIENT is outcome.kind


@pytest.mark.parametrize("is_strict", [False, True])
def test_425_hands_back_after_a_random_time_of_one_to_five_seconds(is_strict: bool) -> None:
    waits = []
    for u in (0.0, 0.25, 0.5, 0.75, 0.999999):
        outcome = outcome_of_status(425, now=NOW, u=u, gives_up_on_4xx=is_strict)
        assert isinstance(outcome, Requeue)
        waits.append(outcome.delay_ms)

    assert [1_000, 2_000, 3_000, 4_000] == waits[:4]
    assert 4_999 <= waits[4] <= 5_000
    drawn = [outcome_of_status(425, now=NOW) for _ in range(200)]
    delays = [each.delay_ms for each in drawn if isinstance(each, Requeue)]
    assert 1_000 <= min(delays) < 2_000
    assert 4_000 < max(delays) <= 5_000


def test_a_service_may_say_until_when() -> None:
    busy, early = outcome_of_status(503, now=NOW, retry_after="120"), outcome_of_status(425, now=NOW, retry_after="7")
    dated = outcome_of_status(429, now=NOW, retry_after="Fri, 28 Nov 2025 03:21:40 GMT")

    assert isinstance(busy, Failure)
    assert 120_000 == busy.retry_after_ms
    assert isinstance(early, Requeue)
    assert 7_000 == early.delay_ms
    assert isinstance(dated, Failure)
    assert 100_000 == dated.retry_after_ms


# ------------------------------------------------------------------------------------------------ Python handlers


class Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"refused with {status}")
        self.status_code = status


class Reply:
    def __init__(self, status: int, **headers: str) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def handler_of(result: Any) -> Any:
    def handle(payload: dict[str, Any]) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    return status_handler(handle, clock=lambda: NOW)


@pytest.mark.parametrize("result", [404, Reply(404), Refused(404)])
async def test_a_python_handler_returns_or_raises_its_status(result: Any) -> None:
    outcome = await handler_of(result)({})

    assert isinstance(outcome, Failure)
    assert (FailureKind.TRANSIENT, "HTTP_404") == (outcome.kind, outcome.code)


@pytest.mark.parametrize("result", [None, 204, Reply(200), True])
async def test_a_python_handler_succeeds(result: Any) -> None:
    outcome = await handler_of(result)({})

    assert outcome in {None, True}


async def test_the_headers_of_a_reply_are_asked_for_retry_after() -> None:
    outcome = await handler_of(Reply(503, retry_after="9"))({})

    assert isinstance(outcome, Failure)
    assert 9_000 == outcome.retry_after_ms


async def test_an_error_without_a_status_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await handler_of(ZeroDivisionError())({})


async def test_an_async_handler_is_awaited() -> None:
    async def handle(payload: dict[str, Any]) -> int:
        return 425

    outcome = await status_handler(handle, clock=lambda: NOW)({})

    assert isinstance(outcome, Requeue)
