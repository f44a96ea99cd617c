"""A Redis URL is read once; what is wrong in it is named, and no password is ever shown."""

from __future__ import annotations

import pytest

from redrive.brokers.bullmq.versions import check_version
from redrive.errors import ConfigurationError
from redrive.redis.address import parse
from redrive.redis.failures import KINDS, Kind, Refusal, refused
from redrive.redis.scripts import Script
from redrive.runtime.adapters import masked


def test_a_plain_url_has_defaults() -> None:
    address = parse("redis://localhost")

    assert ((("localhost", 6379),), 0, "bull", None, None) == (
        address.hosts, address.database, address.prefix, address.user, address.password,
    )  # fmt: skip


def test_everything_in_a_url_is_read() -> None:
    address = parse("redis://us%40er:p%2Fw@h1:1,h2,[::1]:3/7?prefix={b}&publish_timeout=5&keep_failed=true")

    assert (("h1", 1), ("h2", 6379), ("::1", 3)) == address.hosts
    assert ("us@er", "p/w", 7, "{b}", 5_000) == (
        address.user, address.password, address.database, address.prefix, address.publish_timeout_ms,
    )  # fmt: skip
    assert (False, True) == (address.keep_completed, address.keep_failed)
    assert "p/w" not in repr(address)
    assert "p/w" not in address.where


def test_sentinels_have_their_own_port_and_password() -> None:
    address = parse("redis://:pw@s1,s2:5/0?sentinel=main&sentinel_password=other")

    assert ((("s1", 26379), ("s2", 5)), "main", "other") == (
        address.hosts, address.sentinel, address.sentinel_password,
    )  # fmt: skip
    assert "other" not in repr(address)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost", "starts with redis://"),
        ("redis://", "starts with redis://"),
        ("redis://host:0", "no host"),
        ("redis://host:x", "no host"),
        ("redis://[::1", "no host"),
        ("redis://[::1]6379", "no host"),
        ("redis://host/db", "no database"),
        ("redis://secret@host", "no password"),
        ("redis://host?prefx=a", "Did you mean prefix?"),
        ("redis://host?prefix=", "prefix"),
        ("redis://host?keep_failed=maybe", "true or false"),
        ("redis://host?publish_timeout=0", "longer than nothing"),
        ("redis://host?ca=/x", "rediss:// only"),
        ("rediss://host?ca=/not/there", "is not there"),
    ],
)
def test_what_is_wrong_is_named(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(url)

    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_no_password_is_shown() -> None:
    assert "redis://user:***@h1,h2/0" == masked("redis://user:pw@h1,h2/0")
    assert "redis://:***@h/0?sentinel=m&sentinel_password=***" == masked(
        "redis://:pw@h/0?sentinel=m&sentinel_password=x"
    )
    assert "redis://h/0?sentinel_password=***" == masked("redis://h/0?sentinel_password=x")
    assert "redis://h/0?prefix=a" == masked("redis://h/0?prefix=a")


@pytest.mark.parametrize("code", KINDS)
def test_every_error_of_the_server_says_what_it_means_and_what_became_of_the_message(code: str) -> None:
    plain, inside = Refusal(f"{code} words of the server"), Refusal(f"ERR Error running script: {code} words")

    error = refused("host:1 (database 0)", plain, fate="Nothing was published.")

    assert plain.kind is inside.kind is KINDS[code][0]
    assert "Nothing was published." in error.text
    assert ("configuration" if KINDS[code][0] is Kind.REFUSED else "broker_unavailable") == error.code


def test_an_error_nobody_knows_is_a_persons_business() -> None:
    assert Kind.REFUSED is Refusal("ERR something new").kind


def test_a_script_without_its_first_line_is_for_servers_that_do_not_know_it() -> None:
    script = Script("s", "return 1", runs_when_full=True)
    before = script.sha

    assert [True, False] == [script.without_flags(), script.without_flags()]
    assert "return 1" == script.text
    assert before != script.sha


def test_a_server_that_is_too_old_is_refused_and_one_that_says_nothing_is_not() -> None:
    for version in ("6.2.0", "7.0.15", "8.1", "", "7", "unstable"):
        check_version(version, "host:1")

    for version in ("6.0.16", "5.0.7", "2.8.0"):
        with pytest.raises(ConfigurationError, match=version):
            check_version(version, "host:1")
