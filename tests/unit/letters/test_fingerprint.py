"""Which letters are the same problem."""

from __future__ import annotations

import random
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.fingerprint import (
    MAX_TITLE_BYTES,
    fingerprint,
    group_title,
    normalised,
    top_own_frame,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("order 4711 not found", "order <n> not found"),
        ("waited 1.5s of -3e10", "waited <n>s of <n>"),
        ("user 7f9c2ba4-e88f-4b3a-8c52-0a1b2c3d4e5f is gone", "user <uuid> is gone"),
        ("at 0x7f3a2c at 0xFF", "at <hex> at <hex>"),
        ("commit 9f86d081884c7d65", "commit <hex>"),
        ("job req_a1b2c3 failed", "job <id> failed"),
        ("since 2026-01-31T12:00:00.250Z", "since <time>"),
        ("since 2026-01-31 12:00:00+01:00, 12:00:01", "since <time>, <time>"),
        ("mail to ana.b+c@example.org refused", "mail to <email> refused"),
        ("connect 10.0.0.7:5432 refused", "connect <ip> refused"),
        ("connect fe80::1ff:fe23:4567:890a refused", "connect <ip> refused"),
        ("GET https://api.example/v1/orders/77?x=1 failed", "GET <url> failed"),
        ("no file /var/data/77/a.json", "no file <path>"),
        (r"no file C:\data\77\a.json", "no file <path>"),
        ("key 'abc' and \"d e\"", "key <quoted> and <quoted>"),
        ("it doesn't exist, can't load", "it doesn't exist, can't load"),
        ("a\n\t b", "a b"),
        ("HTTP status of the carrier", "HTTP status of the carrier"),
        ("deadbeef cafe", "deadbeef cafe"),
    ],
)
def test_what_differs_from_one_failure_to_the_next_is_replaced(text: str, expected: str) -> None:
    assert expected == normalised(text)


def group(
    text: str = "order 1 not found",
    *,
    queue: str = "orders",
    kind: str = "KeyError",
    code: str = "KEY_ERROR",
    traceback: str | None = None,
) -> str:
    return fingerprint(queue, error_type=kind, error_code=code, text=text, traceback=traceback)


def test_forty_thousand_failures_read_as_three() -> None:
    draw = random.Random(3)
    texts = [
        draw.choice(
            (
                f"order {draw.randrange(10**9)} not found",
                f"carrier 10.0.{draw.randrange(255)}.{draw.randrange(255)} refused after {draw.random()} s",
                f"duplicate row '{draw.randrange(10**6)}' for {uuid.UUID(int=draw.getrandbits(128))}",
            )
        )
        for _ in range(2_000)
    ]

    assert 3 == len({group(text) for text in texts})


def test_a_fingerprint_is_the_same_for_ever() -> None:
    assert group("order 1 not found") == group("order 2 not found")
    assert "v2-ad899e42d922c6fa" == group("order 1 not found")


def test_queue_type_code_message_and_frame_each_make_another_group() -> None:
    trace = '  File "/app/shop/charge.py", line 3, in charge\n'
    groups = {
        group(),
        group(queue="mail"),
        group(kind="ValueError"),
        group(code="X"),
        group("another"),
        group(traceback=trace),
    }

    assert 6 == len(groups)


def test_parts_do_not_run_into_each_other() -> None:
    assert fingerprint("a", error_type="bc", error_code="", text="") != fingerprint(
        "ab", error_type="c", error_code="", text=""
    )


BOUND_S = 2.0
"""Of the processor's time, and generous: what grows with the square of a million characters takes hours."""

TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3.11/asyncio/runners.py", line 118, in run
    return self._loop.run_until_complete(task)
  File "/srv/releases/77/shop/billing/charge.py", line 41, in charge
    await client.post(url)
  File "/srv/releases/77/.venv/lib/python3.11/site-packages/httpx/_client.py", line 1859, in post
    return await self.request(
  File "<string>", line 1, in <module>
httpx.ConnectError: refused
"""


def test_the_top_own_frame_is_the_deepest_that_is_no_librarys() -> None:
    assert "billing/charge.py:charge" == top_own_frame(TRACE)


def test_lines_and_release_folders_do_not_split_a_group() -> None:
    moved = TRACE.replace("line 41", "line 57").replace("/srv/releases/77/", "/srv/releases/78/")

    assert group(traceback=TRACE) == group(traceback=moved)


@pytest.mark.parametrize(
    "traceback", [None, "", "nonsense", '  File "x", line y, in z', '  File "<frozen x>", line 1, in f']
)
def test_a_traceback_without_an_own_frame_has_none(traceback: str | None) -> None:
    assert top_own_frame(traceback) is None


def test_a_windows_path_is_a_frame_too() -> None:
    assert "shop/charge.py:charge" == top_own_frame('  File "C:\\app\\shop\\charge.py", line 3, in charge\n')


def test_a_title_is_one_bounded_line_for_a_person() -> None:
    title = group_title(error_type="KeyError", error_code="X", text="order 7\nnot found", traceback=TRACE)

    assert "KeyError: order <n> not found (billing/charge.py:charge)" == title
    assert len(group_title(error_type=None, error_code=None, text="界" * 5_000).encode()) <= MAX_TITLE_BYTES


@given(st.text(st.characters()), st.text(st.characters()))
def test_no_text_whatever_raises_and_the_same_text_is_the_same_group(text: str, traceback: str) -> None:
    assert group(text, traceback=traceback) == group(text, traceback=traceback)
    assert group_title(error_type=text, error_code=text, text=text, traceback=traceback).encode()


@pytest.mark.parametrize(
    "hostile",
    [
        "a" * 10**6,
        "1" * 10**6,
        "a." * 500_000,
        "'" * 10**6,
        "/a" * 500_000,
        "a@" * 500_000,
        "f:" * 500_000,
        "-1" * 500_000,
        "_1" * 500_000,
        "a_" * 500_000,
        "://" * 300_000,
        "a://" * 250_000,
        " " * 10**6,
        "1:1:" * 250_000,
        "0x" * 500_000,
        "1." * 500_000,
        "\\a" * 500_000,
        "a1-" * 300_000,
        "é" * 10**6,
    ],
    ids=lambda text: text[:6],
)
def test_a_hostile_text_costs_a_bounded_time(hostile: str) -> None:
    began = time.thread_time()

    normalised(hostile)

    assert time.thread_time() - began < BOUND_S


def test_a_hostile_traceback_costs_a_bounded_time() -> None:
    began = time.thread_time()

    top_own_frame('  File "' * 4_000)
    top_own_frame(" " * 32_000)

    assert time.thread_time() - began < BOUND_S
