"""Forty thousand failures of twelve causes are twelve groups, whatever ids, hosts, amounts and times they name."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import pytest

from redrive.core.letters.fingerprint import fingerprint

FAILURES: Final = 40_000
FEWER: Final = 3_000
SPARE: Final = 1
Draw = random.Random


def _host(draw: Draw) -> str:
    kinds = (
        f"db-{draw.randint(1, 40)}.eu-west-{draw.randint(1, 3)}.internal.example",
        f"10.{draw.randint(0, 255)}.3.7",
        f"pay{draw.randint(1, 99):02}.example.com",
        f"[fe80::{draw.randint(1, 0xFFFF):x}]",
    )
    return draw.choice(kinds)


def _amount(draw: Draw) -> str:
    euros = draw.randint(1, 99_999)
    cents = draw.randint(0, 99)
    return draw.choice(
        (f"{euros:,}.{cents:02} EUR", f"{euros:,}".replace(",", ".") + f",{cents:02} EUR", f"{euros} EUR")
    )


def _time(draw: Draw) -> str:
    day, hour, second = draw.randint(10, 28), draw.randint(10, 23), draw.randint(10, 59)
    return draw.choice(
        (
            f"2026-11-{day}T{hour}:15:{second}Z",
            f"{hour}:15:{second}.{draw.randint(0, 999):03}",
            f"2026-11-{day} {hour}:15:{second}+01:00",
        )
    )


def _id(draw: Draw) -> str:
    whole = draw.getrandbits(128)
    return draw.choice(
        (
            str(uuid.UUID(int=whole)),
            f"ord_{whole % 10**8:08}",
            str(whole % 10**9),
            f"{whole:032x}",
            f"A-{whole % 10**5:05}",
        )
    )


CAUSES: Final[dict[str, tuple[str, str, Callable[[Draw], str]]]] = {
    "refused": (
        "ConnectionRefusedError",
        "CONNECTION_REFUSED",
        lambda d: f"connect to {_host(d)}:{d.randint(1024, 65535)} refused after {d.randint(1, 9)} tries",
    ),
    "timeout": (
        "ReadTimeout",
        "TIMEOUT",
        lambda d: (
            f"no answer from https://{_host(d)}/v1/charges/{_id(d)}?try={d.randint(1, 5)} within "
            f"{d.randint(1, 30)}.{d.randint(0, 9)}s"
        ),
    ),
    "declined": ("CardDeclined", "HTTP_402", lambda d: f"card declined for {_amount(d)}: order {_id(d)} at {_time(d)}"),
    "missing": ("KeyError", "KEY_ERROR", lambda d: f"order {_id(d)} not found (shard {d.randint(0, 63)})"),
    "stock": (
        "OutOfStock",
        "CONFLICT",
        lambda d: f"Artikel {_id(d)}: nur noch {d.randint(0, 9)} Stück am Lager, bestellt {d.randint(10, 99)}",
    ),
    "address": (
        "ValueError",
        "VALIDATION_FAILED",
        lambda d: f"Postleitzahl '{d.randint(10000, 99999)}' ist ungültig für Kunde {_id(d)}",
    ),
    "balance": (
        "InsufficientFunds",
        "HTTP_409",
        lambda d: f"余额不足：需要 {_amount(d)}，订单 {_id(d)}，时间 {_time(d)}",
    ),
    "queue-full": ("QuotaError", "HTTP_429", lambda d: f"请求过多，请在 {d.randint(1, 600)} 秒后重试（租户 {_id(d)}）"),
    "mail": (
        "SMTPResponseException",
        "SMTP_550",
        lambda d: f"550 5.1.1 <user{d.randint(1, 10**6)}@shop{d.randint(1, 999)}.example>: mailbox unknown",
    ),
    "file": (
        "FileNotFoundError",
        "FILE_NOT_FOUND",
        lambda d: f"no such file: /var/spool/in/{_id(d)}/{d.randint(1, 9)}.pdf",
    ),
    "lock": (
        "OperationalError",
        "DATABASE_LOCKED",
        lambda d: (
            f"deadlock detected: process {d.randint(100, 99999)} waits "
            f"for transaction {d.randint(1, 10**8)}, at {_time(d)}"
        ),
    ),
    "json": (
        "JSONDecodeError",
        "MALFORMED_PAYLOAD",
        lambda d: (
            f"Expecting ',' delimiter: line {d.randint(1, 90)} column {d.randint(1, 200)} (char {d.randint(1, 9000)})"
        ),
    ),
}


def _groups(seed: int, *, failures: int = FAILURES) -> dict[str, set[str]]:
    draw = random.Random(seed)
    found: dict[str, set[str]] = defaultdict(set)
    names = list(CAUSES)
    for _ in range(failures):
        cause = draw.choice(names)
        kind, code, text = CAUSES[cause]
        found[fingerprint("orders", error_type=kind, error_code=code, text=text(draw))].add(cause)
    return found


def test_causes_are_groups() -> None:
    found = _groups(1)

    assert abs(len(found) - len(CAUSES)) <= SPARE
    assert all(len(causes) == 1 for causes in found.values())


def test_the_same_failures_are_the_same_groups_again() -> None:
    assert _groups(7, failures=FEWER) == _groups(7, failures=FEWER)
    assert set(_groups(8, failures=FEWER)) == set(_groups(9, failures=FEWER))


@pytest.mark.parametrize(
    "texts",
    [
        ("host db.internal gone", "host cache-a.prod.svc.cluster.local gone", "host 10.0.0.7 gone", "host mx1.io gone"),
        ("connect to localhost:6379", "connect to api.eu.example.com:443", "connect to [2001:db8::1]:6379"),
        ("order ORD-17 failed", "order INV-2026/993 failed", "order 4711 failed", "order cus_9x8 failed"),
        ("fällig am 28.11.2026 14:05", "fällig am 1. Dez. 2026", "fällig am Sat, 28 Nov 2026 14:05:00 +0000"),
        ("expired Sat Nov 28 14:05:00 2026", "expired Mon May  4 09:00:00 2026", "expired 2026-11-28T14:05:00Z"),
        ("limit 1.250,00 TL aşıldı", "limit €12.50 aşıldı", "limit $1,250 aşıldı", "limit 12 EUR aşıldı"),
        ("took 30s", "took 1.5 s", "took 200 ms", "took 2 min"),
        ("body of 1.2 MB is too large", "body of 300kB is too large", "body of 7 GiB is too large"),
        ("用户4711余额不足", "用户ORD-12余额不足"),
    ],
)
def test_what_differs_between_two_failures_of_one_cause_is_left_out(texts: tuple[str, ...]) -> None:
    assert 1 == len({fingerprint("orders", error_type="E", error_code="C", text=text) for text in texts})


def test_causes_that_only_words_tell_apart_stay_apart() -> None:
    texts = (
        "connect to db.internal refused",
        "connect to db.internal timed out",
        "java.io.Closed: no",
        "java.net.Closed: no",
        "limit of the day",
        "limit of the month",
        "may not be empty",
        "must be empty",
    )

    assert len(texts) == len({fingerprint("orders", error_type="E", error_code="C", text=text) for text in texts})
