"""Signature schemes: WH-01 to WH-04 of the hand-out cases, as pure functions."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.ingest import GitHub, Refusal, StandardWebhooks, Stripe, TimestampedHmac, Verified
from redrive.ingest.signatures import MAX_HEADER_BYTES, RawHeaders, Scheme

T = 1_700_000_000
NOW = T * 1_000
TOLERANCE_MS = 300_000
SECRET_1 = "whsec_cmVkcml2ZS1jYXNlLWtleS0wMDAwMDAwMDAwMDAwQTE="
SECRET_2 = "whsec_cmVkcml2ZS1jYXNlLWtleS0wMDAwMDAwMDAwMDAwQjI="
BODY_44 = bytes.fromhex("7b226964223a393030373139393235343734303939332c20226e6f7465223a22636166c3a920f09f988a227d")
BY_1 = "v1,BqPa6VatpQ9jDCW/ehsFaww88GEorGT37bqXq/pgAjw="
BY_2 = "v1,YLBseWALj3FM33QEyOwren8mg7xs7z9uP6hiDWe5duY="
HUB_GOOD = "sha256=a980a14e62b15206a34236a77a123a6b6fa65c292f817a06e8618710ea259e95"
HUB_EMPTY = "sha256=839325e90a1b69292561944049482a5be1ac973c876772106fb8590eb3841c7e"
ALL_SCHEMES = (TimestampedHmac(), StandardWebhooks(), GitHub(), Stripe())


def verify(
    scheme: Scheme, headers: RawHeaders, body: bytes, *, secrets: tuple[str, ...], now: int = NOW
) -> Verified | Refusal:
    keys = [scheme.key(secret) for secret in secrets]
    return scheme.verify(headers, body, keys=keys, now=now, tolerance_ms=TOLERANCE_MS)


def standard(signature: str, *, secrets: tuple[str, ...] = (SECRET_1,), body: bytes = b'{"a":1}') -> Verified | Refusal:
    headers = [
        (b"webhook-id", b"msg_case_0001"),
        (b"webhook-timestamp", b"1700000000"),
        (b"webhook-signature", signature.encode()),
    ]
    return verify(StandardWebhooks(), headers, body, secrets=secrets)


def timestamped(text: bytes, *, now: int = NOW) -> Verified | Refusal:
    digest = hmac.new(b"courier-secret", text + b".{}", hashlib.sha256).hexdigest()
    headers = [(b"x-signature-timestamp", text), (b"x-signature", digest.encode())]
    return verify(TimestampedHmac(), headers, b"{}", secrets=("courier-secret",), now=now)


def hub(*values: bytes, body: bytes = b'{"a":1}', name: bytes = b"x-hub-signature-256") -> Verified | Refusal:
    return verify(GitHub(), [(name, value) for value in values], body, secrets=("case-hub-secret",))


# ------------------------------------------------------------------------------------------------ WH-01


def test_wh01_the_signature_holds_for_the_bytes_as_received_and_only_for_them() -> None:
    good = standard("v1,ywGSpq74skIWO3MU2qsPbOf0jl7VQwkHDaabzy5bvKI=", body=BODY_44)
    remade = standard("v1,scEX5a5T5ZTzf0rwLnuRRJdwB4J+5WM1gR9yHxMov2U=", body=BODY_44)

    assert isinstance(good, Verified)
    assert ("msg_case_0001", T) == (good.event_id, good.timestamp)
    assert Refusal.SIGNATURE_MISMATCH is remade


# ------------------------------------------------------------------------------------------------ WH-02


@pytest.mark.parametrize(
    ("signature", "secrets", "index"),
    [
        (f"{BY_1} {BY_2}", (SECRET_1, SECRET_2), 0),
        (BY_2, (SECRET_1, SECRET_2), 1),
        (f"v1a,AAAA v2,BBBB {BY_1}", (SECRET_1,), 0),
        (f"v1, {BY_1}", (SECRET_1,), 0),
    ],
)
def test_wh02_any_of_several_signatures_may_fit_any_of_several_secrets(
    signature: str, secrets: tuple[str, ...], index: int
) -> None:
    verdict = standard(signature, secrets=secrets)

    assert isinstance(verdict, Verified)
    assert index == verdict.secret_index


def test_wh02_a_signature_by_a_secret_that_is_gone_is_refused() -> None:
    assert Refusal.SIGNATURE_MISMATCH is standard(BY_2, secrets=(SECRET_1,))


@pytest.mark.parametrize("version", ["", "v2,", "v1a,", "V1,", "v1, ", "v1,v1,"])
def test_wh02_the_right_digest_counts_only_as_v1(version: str) -> None:
    assert Refusal.SIGNATURE_MISMATCH is standard(version + BY_1.removeprefix("v1,"))


def test_wh02_commas_do_not_separate_signatures() -> None:
    assert Refusal.SIGNATURE_MISMATCH is standard(f"{BY_2},{BY_1}", secrets=(SECRET_1,))


def test_wh02_a_thousand_signatures_are_refused_at_once() -> None:
    """None of them is compared: their number is enough."""
    assert Refusal.SIGNATURE_UNREADABLE is standard(" ".join([BY_1] * 1_000))


def test_more_signatures_than_the_bound_in_a_short_header_are_refused_too() -> None:
    assert Refusal.SIGNATURE_UNREADABLE is standard(" ".join(["v1,A"] * 17 + [BY_1]))


def test_a_verdict_never_shows_a_secret() -> None:
    verdict = standard(BY_2, secrets=(SECRET_1, SECRET_2))

    assert SECRET_2 not in repr(verdict)
    assert "B2" not in repr(verdict)


# ------------------------------------------------------------------------------------------------ WH-03


@pytest.mark.parametrize(
    ("shift_s", "ok"), [(0, True), (300, True), (301, False), (-300, True), (-301, False), (300.001, False)]
)
def test_wh03_the_tolerance_counts_on_both_sides_bounds_included(shift_s: float, ok: bool) -> None:
    verdict = timestamped(b"1700000000", now=NOW + int(shift_s * 1_000))

    assert ok is isinstance(verdict, Verified)
    if not ok:
        assert Refusal.TIMESTAMP_OUTSIDE_TOLERANCE is verdict


ODD_TIMES = (
    b"1700000000000",
    b"1700000000.5",
    b" 1700000000",
    b"1700000000 ",
    b"+1700000000",
    b"1_700_000_000",
    b"1.7e9",
    b"0x6553f100",
    b"NaN",
    b"inf",
    b"-1",
    b"",
    b"9" * 400,
    "١٧٠٠٠٠٠٠٠٠".encode(),
    b"1700000000\x00",
    b"\xff",
)


@pytest.mark.parametrize("text", ODD_TIMES)
def test_wh03_odd_timestamp_texts_are_refused_although_the_signature_covers_them(text: bytes) -> None:
    verdict = timestamped(text)

    assert isinstance(verdict, Refusal)


@pytest.mark.parametrize("scheme", [TimestampedHmac(), StandardWebhooks(), Stripe()])
def test_wh03_a_missing_timestamp_is_refused(scheme: Scheme) -> None:
    headers = [
        (b"x-signature", b"a" * 64),
        (b"webhook-id", b"m"),
        (b"webhook-signature", b"v1,x"),
        (b"stripe-signature", b"v1=" + b"a" * 64),
    ]

    verdict = verify(scheme, headers, b"{}", secrets=("whsec_" + base64.b64encode(b"k" * 24).decode(),))

    assert Refusal.TIMESTAMP_MISSING is verdict


# ------------------------------------------------------------------------------------------------ WH-04


def test_wh04_the_good_signature_is_taken_in_any_case_of_the_headers_name() -> None:
    assert isinstance(hub(HUB_GOOD.encode()), Verified)
    assert isinstance(hub(HUB_GOOD.encode(), name=b"X-HUB-Signature-256"), Verified)


def test_wh04_an_empty_body_can_be_signed() -> None:
    assert isinstance(hub(HUB_EMPTY.encode(), body=b""), Verified)


@pytest.mark.parametrize(
    "value",
    [
        b"sha256=\xe9",
        b"md5=a980a14e62b15206a34236a77a123a6b",
        b"bogus=a980a14e62b15206a34236a77a123a6b6fa65c292f817a06e8618710ea259e95",
        HUB_GOOD.removeprefix("sha256=").encode(),
        b"sha256=",
        HUB_GOOD.upper().encode(),
        b"sha256=" + HUB_GOOD.removeprefix("sha256=").upper().encode(),
        HUB_GOOD.encode() + b" ",
        b" " + HUB_GOOD.encode(),
        b"",
        HUB_GOOD.encode() * 15_000,
    ],
)
def test_wh04_everything_but_the_exact_header_is_refused(value: bytes) -> None:
    assert isinstance(hub(value), Refusal)


def test_wh04_two_signature_headers_are_refused_even_two_good_ones() -> None:
    bad, good = b"sha256=" + b"0" * 64, HUB_GOOD.encode()

    verdicts = {hub(bad, good), hub(good, bad), hub(good, good)}

    assert {Refusal.SIGNATURE_REPEATED} == verdicts


def test_wh04_sha1_alone_is_no_signature() -> None:
    assert Refusal.SIGNATURE_MISSING is hub(b"sha1=" + b"0" * 40, name=b"x-hub-signature")


# ------------------------------------------------------------------------------------------------ system A


@pytest.mark.parametrize("prefix", ["", "sha256="])
@pytest.mark.parametrize("spelling", ["hex", "HEX", "base64"])
def test_system_a_takes_hex_and_base64_with_and_without_prefix(prefix: str, spelling: str) -> None:
    digest = hmac.new(b"s", b"1700000000.{}", hashlib.sha256)
    text = {
        "hex": digest.hexdigest(),
        "HEX": digest.hexdigest().upper(),
        "base64": base64.b64encode(digest.digest()).decode(),
    }[spelling]
    headers = [(b"X-Signature-Timestamp", b"1700000000"), (b"X-Signature", (prefix + text).encode())]

    verdict = verify(TimestampedHmac(), headers, b"{}", secrets=("old", "s"))

    assert Verified(secret_index=1, signature=text, timestamp=T) == verdict


def test_the_signature_covers_the_timestamp() -> None:
    digest = hmac.new(b"s", b"1700000000.{}", hashlib.sha256).hexdigest().encode()
    headers = [(b"x-signature-timestamp", b"1700000001"), (b"x-signature", digest)]

    assert Refusal.SIGNATURE_MISMATCH is verify(TimestampedHmac(), headers, b"{}", secrets=("s",))


# ------------------------------------------------------------------------------------------------ Stripe


def stripe(header: str, secrets: tuple[str, ...] = ("whsec_s",)) -> Verified | Refusal:
    return verify(Stripe(), [(b"Stripe-Signature", header.encode())], b"{}", secrets=secrets)


def stripe_digest() -> str:
    return hmac.new(b"whsec_s", b"1700000000.{}", hashlib.sha256).hexdigest()


def test_stripe_takes_any_v1_and_passes_over_v0() -> None:
    verdict = stripe(f"t={T},v0={'0' * 64},v1={'0' * 64},v1={stripe_digest()}", secrets=("whsec_new", "whsec_s"))

    assert isinstance(verdict, Verified)
    assert (1, T) == (verdict.secret_index, verdict.timestamp)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=,v1=",
        f"t={T}",
        f"v1={stripe_digest()}",
        f"t={T},v0={stripe_digest()}",
        f"t={T},t={T},v1={stripe_digest()}",
        f"t={T}, v1={stripe_digest()}",
        f"t={T - 301},v1={stripe_digest()}",
        f"t={T}," + ",".join([f"v1={stripe_digest()}"] * 17),
        "=,=,=",
    ],
)
def test_stripe_refuses_everything_else(header: str) -> None:
    assert isinstance(stripe(header), Refusal)


# ------------------------------------------------------------------------------------------------ all schemes


@given(
    scheme=st.sampled_from(ALL_SCHEMES),
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"x-signature",
                    b"X-Signature-Timestamp",
                    b"webhook-id",
                    b"webhook-timestamp",
                    b"webhook-signature",
                    b"x-hub-signature-256",
                    b"stripe-signature",
                    b"\xff",
                ]
            ),
            st.one_of(
                st.binary(max_size=80), st.sampled_from([b"1700000000", b"v1,", b"sha256=", b"t=1700000000,v1="])
            ),
        ),
        max_size=8,
    ),
    body=st.binary(max_size=50),
    now=st.integers(min_value=-(2**62), max_value=2**62),
)
def test_whatever_a_sender_writes_is_refused_and_never_raises(
    scheme: Scheme, headers: list[tuple[bytes, bytes]], body: bytes, now: int
) -> None:
    keys = [b"a secret nobody guesses", b"and another"]

    verdict = scheme.verify(headers, body, keys=keys, now=now, tolerance_ms=TOLERANCE_MS)

    assert isinstance(verdict, Refusal)


@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_a_very_long_header_is_refused_unread(scheme: Scheme) -> None:
    names = [b"x-signature", b"webhook-id", b"webhook-signature", b"x-hub-signature-256", b"stripe-signature"]
    headers = [(name, b"a" * (MAX_HEADER_BYTES + 1)) for name in names]

    assert Refusal.SIGNATURE_UNREADABLE is verify(scheme, headers, b"", secrets=("whsec_YQ==",))


@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_a_blank_secret_is_a_configuration_error(scheme: Scheme) -> None:
    with pytest.raises(ConfigurationError):
        scheme.key("  ")


def test_a_broken_standard_webhooks_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        StandardWebhooks().key("whsec_not*base64")

    assert "not*base64" not in str(caught.value)
