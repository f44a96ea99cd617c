"""Where messages may go: the public internet, unless somebody says otherwise."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.push.addresses import refusal_of
from redrive.push.target import parse_target

METADATA = ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
INSIDE = (
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1"),
)
HIDDEN = (
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:a00:1", "::127.0.0.1", "64:ff9b::10.0.0.1"),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::", "2002:a9fe:a9fe::1"),
)
OUTSIDE = ("93.184.215.14", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "2002:808:808::1")


@pytest.mark.parametrize("address", [*METADATA, *INSIDE, *HIDDEN])
def test_what_is_not_the_public_internet_is_refused(address: str) -> None:
    assert refusal_of(address) is not None


@pytest.mark.parametrize("address", OUTSIDE)
def test_public_addresses_are_allowed(address: str) -> None:
    assert refusal_of(address) is None


@pytest.mark.parametrize("text", ["", "example.org", "1.2.3", "127.1", "0x7f.0.0.1", "2130706433", "::ffff:", "%eth0"])
def test_what_is_no_address_is_refused(text: str) -> None:
    assert "no IP address" == refusal_of(text)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_counts_the_same_inside_an_ipv6_one(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    mapped = ipaddress.IPv6Address((0xFFFF << 32) | number)
    translated = ipaddress.IPv6Address((0x64FF9B << 96) | number)
    six_to_four = ipaddress.IPv6Address((0x2002 << 112) | (number << 80) | 1)

    is_refused = refusal_of(str(address)) is not None

    assert is_refused == (refusal_of(str(mapped)) is not None)
    if is_refused:
        assert None not in {refusal_of(str(translated)), refusal_of(str(six_to_four))}


@given(st.one_of(st.ip_addresses(), st.text(max_size=40)))
def test_no_text_raises(text: object) -> None:
    assert isinstance(refusal_of(str(text)), str | None)


# ------------------------------------------------------------------------------------------------ targets


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x", "http://10.0.0.8:8080/x", "http://[::1]/x", "http://[::ffff:169.254.169.254]/",
        "http://169.254.169.254/latest/meta-data", "http://localhost/x", "http://service/x", "http://2130706433/",
        "https://user:secret@192.168.0.1/x", "http://127.1/",
    ],
)  # fmt: skip
def test_a_url_into_the_own_network_is_refused_unless_allowed(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_target(url)

    assert "--allow-private" in refused.value.hint
    assert "secret" not in str(refused.value)
    assert parse_target(url, allow_private=True).url


@pytest.mark.parametrize(
    "url",
    [
        "", "service.example/x", "ftp://service.example/", "file:///etc/passwd", "http://", "https:///x",
        "http://service.example:99999/", "http://service.example:0/", "http://service.example/a b",
        "http://service.example/\r\nx-evil: 1", "http://service.example/\x00", "http://[::1", "unix:///run/x.sock",
        "http://bücher.example/", "http://service.example/" + "a" * 2_048,
    ],
)  # fmt: skip
def test_what_is_no_http_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_target(url, allow_private=True)

    assert len(url) < 10 or url not in str(refused.value)


def test_credentials_become_a_header_and_leave_the_url() -> None:
    target = parse_target("https://me:s%40crt@service.example/orders?x=1#part")

    assert "https://service.example/orders?x=1" == target.url
    assert "Basic bWU6c0BjcnQ=" == target.authorization
    assert "crt" not in repr(target)


def test_a_given_authorization_wins_over_the_url() -> None:
    assert "Bearer t" == parse_target("https://a:b@service.example/", authorization="Bearer t").authorization


def test_an_authorization_with_a_line_break_is_refused_unshown() -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_target("https://service.example/", authorization="Bearer t\r\nx: y")

    assert "Bearer" not in str(refused.value)
