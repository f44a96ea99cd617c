"""What an exception, a status or a signal says about another attempt."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import sys
import urllib.error
from collections.abc import Callable
from email.message import Message as MailHeaders
from typing import Any

import httpx
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.catalogue.errors import BY_NAME
from redrive.core.policy.classify import (
    MAX_MEMBERS,
    Failure,
    FailureKind,
    Match,
    Rule,
    classify,
    classify_status,
    error_text,
    error_type,
    find_signal,
)
from redrive.core.signals import DeadLetter, Requeue, RetryLater, Signal
from redrive.core.text import MAX_TEXT_BYTES
from redrive.errors import ConfigurationError

NOW = 1_700_000_000_000
TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT


def raised(act: Callable[[], Any]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def a_class(module: str, name: str, *bases: type[BaseException]) -> type[BaseException]:
    """A class as that library has it, without the library."""
    return type(name, bases or (Exception,), {"__module__": module, "__qualname__": name})


def kind_and_code(error: BaseException, *rules: Rule) -> tuple[FailureKind, str]:
    failure = classify(error, rules, now=NOW)
    return failure.kind, failure.code


class Order(pydantic.BaseModel):
    id: int


class Item(msgspec.Struct):
    id: int


# ------------------------------------------------------------------------------------------------ Python


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeoutError(), "TIMEOUT"),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), "TIMEOUT"),
        (TimeoutError("timed out"), "TIMEOUT"),
        (OSError(errno.ETIMEDOUT, "timed out"), "TIMEOUT"),
        (ConnectionRefusedError(), "ECONNREFUSED"),
        (OSError(errno.ECONNREFUSED, "refused"), "ECONNREFUSED"),
        (ConnectionResetError(), "ECONNRESET"),
        (BrokenPipeError(), "EPIPE"),
        (ConnectionAbortedError(), "ECONNABORTED"),
        (ConnectionError("somehow"), "CONNECTION_FAILED"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "DNS_FAILED"),
        (OSError(errno.ENOSPC, "disk full"), "ENOSPC"),
        (FileNotFoundError(errno.ENOENT, "gone"), "ENOENT"),
        (OSError("no number"), "OS_ERROR"),
        (ssl.SSLError("handshake"), "TLS_FAILED"),
        (asyncio.IncompleteReadError(b"", 4), "ECONNRESET"),
        (ZeroDivisionError("x"), "ZERO_DIVISION_ERROR"),
        (ValueError("x"), "VALUE_ERROR"),
        (KeyError("x"), "KEY_ERROR"),
        (SystemExit(1), "SYSTEM_EXIT"),
        (KeyboardInterrupt(), "KEYBOARD_INTERRUPT"),
    ],
)
def test_pythons_own_errors_are_transient_under_their_codes(error: BaseException, code: str) -> None:
    assert (TRANSIENT, code) == kind_and_code(error)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda: json.loads("{"), "MALFORMED_PAYLOAD"),
        (b"\xff".decode, "MALFORMED_PAYLOAD"),
        (lambda: Order.model_validate({"id": "x"}), "VALIDATION_FAILED"),
        (lambda: msgspec.json.decode(b'{"id": "x"}', type=Item), "VALIDATION_FAILED"),
        (lambda: msgspec.json.decode(b"{"), "MALFORMED_PAYLOAD"),
    ],
)
def test_validation_and_malformed_payloads_are_permanent(act: Callable[[], Any], code: str) -> None:
    assert (PERMANENT, code) == kind_and_code(raised(act))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ValidationError", (PERMANENT, "VALIDATION_FAILED")),
        ("InvalidPayloadError", (PERMANENT, "VALIDATION_FAILED")),
        ("MalformedPayloadError", (PERMANENT, "MALFORMED_PAYLOAD")),
        ("GatewayTimeout", (TRANSIENT, "TIMEOUT")),
        ("CarrierTimedOut", (TRANSIENT, "TIMEOUT")),
        ("CarrierSaysNo", (TRANSIENT, "CARRIER_SAYS_NO")),
    ],
)
def test_a_teams_own_class_is_known_by_the_names_everybody_uses(name: str, expected: tuple[FailureKind, str]) -> None:
    assert expected == kind_and_code(a_class("courier.errors", name)("x"))


def test_a_subclass_of_a_known_class_is_known() -> None:
    assert (PERMANENT, "VALIDATION_FAILED") == kind_and_code(a_class("app", "Bad", a_class("app", "ValidationError"))())


# ------------------------------------------------------------------------------------------------ libraries


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [
        ("httpx", "ReadTimeout", "TIMEOUT"),
        ("httpcore._exceptions", "ConnectTimeout", "TIMEOUT"),
        ("requests.exceptions", "ReadTimeout", "TIMEOUT"),
        ("requests.exceptions", "ConnectionError", "CONNECTION_FAILED"),
        ("requests.exceptions", "JSONDecodeError", "INVALID_RESPONSE"),
        ("urllib3.exceptions", "MaxRetryError", "CONNECTION_FAILED"),
        ("aiohttp.client_exceptions", "ServerTimeoutError", "TIMEOUT"),
        ("aiohttp.client_exceptions", "ServerDisconnectedError", "CONNECTION_FAILED"),
        ("redis.exceptions", "TimeoutError", "TIMEOUT"),
        ("redis.exceptions", "ConnectionError", "CONNECTION_FAILED"),
        ("pymongo.errors", "ServerSelectionTimeoutError", "TIMEOUT"),
        ("pymongo.errors", "AutoReconnect", "CONNECTION_FAILED"),
        ("psycopg", "OperationalError", "CONNECTION_FAILED"),
        ("psycopg.errors", "ConnectionTimeout", "TIMEOUT"),
        ("asyncpg.exceptions", "ConnectionDoesNotExistError", "CONNECTION_FAILED"),
        ("pika.exceptions", "AMQPConnectionError", "CONNECTION_FAILED"),
        ("aiormq.exceptions", "AMQPConnectionError", "CONNECTION_FAILED"),
        ("botocore.exceptions", "ReadTimeoutError", "TIMEOUT"),
        ("botocore.exceptions", "EndpointConnectionError", "CONNECTION_FAILED"),
        ("aiosmtplib.errors", "SMTPConnectTimeoutError", "TIMEOUT"),
        ("smtplib", "SMTPServerDisconnected", "ECONNRESET"),
    ],
)
def test_a_librarys_error_is_known_by_name_without_importing_it(module: str, name: str, code: str) -> None:
    assert (TRANSIENT, code) == kind_and_code(a_class(module, name)("x"))


def test_classifying_imports_no_library() -> None:
    before = set(sys.modules)

    for name in BY_NAME:
        library, _, qualname = name.partition(".")
        classify(a_class(library, qualname)("x"), now=NOW)

    assert before == set(sys.modules)


def test_a_real_refused_connection_of_a_client_is_econnrefused() -> None:
    with socket.socket() as bound:  # bound and not listening: a connection is refused
        bound.bind(("127.0.0.1", 0))
        error = raised(lambda: httpx.get(f"http://127.0.0.1:{bound.getsockname()[1]}", trust_env=False))

    failure = classify(error, now=NOW)

    assert (TRANSIENT, "ECONNREFUSED", "httpx.ConnectError") == (failure.kind, failure.code, failure.error_type)


def test_how_a_connection_failed_is_found_below_errors_that_say_nothing_or_hide_it() -> None:
    hidden = raised(lambda: (_ for _ in ()).throw(RuntimeError("says nothing")))
    hidden.__cause__ = None
    hidden.__context__ = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    error = a_class("requests.exceptions", "ConnectionError")("x")
    error.__cause__ = hidden

    assert (TRANSIENT, "ECONNREFUSED") == kind_and_code(error)
    assert (TRANSIENT, "CONNECTION_FAILED") == kind_and_code(chained(type(error)("x"), cause=KeyError("k")))


# ------------------------------------------------------------------------------------------------ statuses


def an_http_error(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://downstream")
    return httpx.HTTPStatusError(
        "no", request=request, response=httpx.Response(status, headers=headers, request=request)
    )


class WithStatusCode(Exception):
    status_code = 503


class WithStatus(Exception):
    status = 429
    headers = {"Retry-After": "7"}  # noqa: RUF012 - as clients have it


class WithSuccess(Exception):
    status = 200


def test_the_status_of_an_error_decides() -> None:
    assert (TRANSIENT, "HTTP_503") == kind_and_code(an_http_error(503))
    assert (PERMANENT, "HTTP_422") == kind_and_code(an_http_error(422))
    assert (TRANSIENT, "HTTP_503") == kind_and_code(WithStatusCode())
    assert (TRANSIENT, "HTTP_429") == kind_and_code(WithStatus())
    assert (TRANSIENT, "WITH_SUCCESS") == kind_and_code(WithSuccess())
    assert (PERMANENT, "HTTP_404") == kind_and_code(urllib.error.HTTPError("u", 404, "gone", MailHeaders(), None))


def test_retry_after_of_an_answer_is_taken_over() -> None:
    assert 120_000 == classify(an_http_error(503, **{"Retry-After": "120"}), now=NOW).retry_after_ms
    assert 7_000 == classify(WithStatus(), now=NOW).retry_after_ms
    assert classify(an_http_error(503, **{"Retry-After": "soon"}), now=NOW).retry_after_ms is None


class AwsError(Exception):
    def __init__(self, code: str, status: int = 400, text: str = "") -> None:
        super().__init__(text)
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AwsError("Throttling"), (TRANSIENT, "Throttling")),
        (AwsError("ServiceUnavailable"), (TRANSIENT, "ServiceUnavailable")),
        (AwsError("MessageRejected"), (PERMANENT, "MessageRejected")),
        (AwsError("MailFromDomainNotVerified"), (PERMANENT, "MailFromDomainNotVerified")),
        (AwsError("NeverHeardOf", 500), (TRANSIENT, "HTTP_500")),
        (AwsError("NeverHeardOf", 404), (PERMANENT, "HTTP_404")),
    ],
)
def test_an_aws_code_says_more_than_its_status(error: AwsError, expected: tuple[FailureKind, str]) -> None:
    assert expected == kind_and_code(error)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("UNAVAILABLE", (TRANSIENT, "GRPC_UNAVAILABLE")),
        ("DEADLINE_EXCEEDED", (TRANSIENT, "TIMEOUT")),
        ("INVALID_ARGUMENT", (PERMANENT, "GRPC_INVALID_ARGUMENT")),
    ],
)
def test_a_grpc_status_is_known_by_name(name: str, expected: tuple[FailureKind, str]) -> None:
    error = a_class("grpc.aio._call", "AioRpcError")("x")
    error.code = lambda: type("StatusCode", (), {"name": name})  # type: ignore[attr-defined]

    assert expected == kind_and_code(error)


def a_mail_error(name: str, **attributes: Any) -> BaseException:
    error = a_class("smtplib", name)("x")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (a_mail_error("SMTPDataError", smtp_code=451, smtp_error=b"4.7.1 Greylisting"), (TRANSIENT, "SMTP_451")),
        (a_mail_error("SMTPDataError", smtp_code=554, smtp_error=b"5.7.1 no"), (PERMANENT, "SMTP_554")),
        (a_mail_error("SMTPSenderRefused", code=550, message="5.1.8 bad sender"), (PERMANENT, "SMTP_550")),
        (
            a_mail_error("SMTPRecipientsRefused", recipients={"a": (550, b"5.1.1 x"), "b": (451, b"y")}),
            (TRANSIENT, "SMTP_451"),
        ),
        (a_mail_error("SMTPRecipientsRefused", recipients={"a": (550, b"5.1.1 x")}), (PERMANENT, "SMTP_550")),
        (a_mail_error("SMTPRecipientsRefused", recipients={}), (TRANSIENT, "SMTP_RECIPIENTS_REFUSED")),
    ],
)
def test_a_mail_servers_reply_decides(error: BaseException, expected: tuple[FailureKind, str]) -> None:
    assert expected == kind_and_code(error)


def test_a_node_style_code_is_known() -> None:
    error = Exception("connect ECONNREFUSED")
    error.code = "ECONNREFUSED"  # type: ignore[attr-defined]

    assert (TRANSIENT, "ECONNREFUSED") == kind_and_code(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, PERMANENT),
        (401, TRANSIENT),
        (403, TRANSIENT),
        (404, PERMANENT),
        (408, TRANSIENT),
        (409, TRANSIENT),
        (422, PERMANENT),
        (429, TRANSIENT),
        (500, TRANSIENT),
        (501, PERMANENT),
        (503, TRANSIENT),
        (504, TRANSIENT),
        (599, TRANSIENT),
        (302, TRANSIENT),
        (0, TRANSIENT),
    ],
)
def test_a_returned_status_is_a_failure_with_its_number(status: int, kind: FailureKind) -> None:
    failure = classify_status(status, now=NOW)

    assert isinstance(failure, Failure)
    assert (kind, f"HTTP_{status}") == (failure.kind, failure.code)
    assert str(status) in failure.text


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_returned_success_is_no_failure(status: int) -> None:
    assert classify_status(status, now=NOW) is None


def test_too_early_costs_no_attempt() -> None:
    plain = classify_status(425, now=NOW)
    told = classify_status(425, retry_after="3", now=NOW, text="not before noon")

    assert isinstance(plain, Requeue)
    assert isinstance(told, Requeue)
    assert (1_000, 3_000, "not before noon") == (plain.delay_ms, told.delay_ms, told.reason)


# ------------------------------------------------------------------------------------------------ rules


class PaymentDeclined(Exception):
    pass


@pytest.mark.parametrize(
    "match",
    [
        PaymentDeclined,
        (KeyError, PaymentDeclined),
        f"{__name__}.PaymentDeclined",
        lambda error: "declined" in str(error),
    ],
)
def test_a_consumers_own_rule_comes_before_every_catalogue(match: Match) -> None:
    error = PaymentDeclined("declined")

    assert (PERMANENT, "PAYMENT_DECLINED") == kind_and_code(error, Rule(match))
    assert (PERMANENT, "DECLINED") == kind_and_code(error, Rule(match, code="DECLINED"))


def test_a_rule_may_make_a_permanent_error_transient_and_the_first_that_fits_decides() -> None:
    error = raised(lambda: json.loads("{"))

    assert (TRANSIENT, "HALF_WRITTEN") == kind_and_code(
        error, Rule(json.JSONDecodeError, TRANSIENT, "HALF_WRITTEN"), Rule(ValueError, PERMANENT, "LATER")
    )


def test_a_rule_fits_a_cause_too() -> None:
    wrapped = raised(lambda: (_ for _ in ()).throw(RuntimeError("outer")))
    wrapped.__cause__ = PaymentDeclined("declined")

    assert (PERMANENT, "PAYMENT_DECLINED") == kind_and_code(wrapped, Rule(PaymentDeclined))


def test_a_rule_that_raises_does_not_fit() -> None:
    assert (TRANSIENT, "VALUE_ERROR") == kind_and_code(ValueError("x"), Rule(lambda error: error.nothing))  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [{"match": KeyError, "kind": "maybe"}, {"match": 5}, {"match": None}])
def test_a_wrong_rule_is_refused_with_the_field_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"Rule\.(kind|match)"):
        Rule(**arguments)


def test_a_rules_kind_may_be_text() -> None:
    assert FailureKind.TRANSIENT is Rule(KeyError, "transient").kind


# ------------------------------------------------------------------------------------------------ causes, groups


def chained(
    outer: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None
) -> BaseException:
    if cause is not None:
        outer.__cause__ = cause
    outer.__context__ = context
    return outer


def test_an_error_that_says_nothing_is_asked_for_its_cause() -> None:
    invalid = raised(lambda: Order.model_validate({}))

    assert (TRANSIENT, "TIMEOUT") == kind_and_code(chained(RuntimeError("x"), cause=TimeoutError()))
    assert (PERMANENT, "VALIDATION_FAILED") == kind_and_code(chained(RuntimeError("x"), cause=invalid))


def test_an_error_raised_while_handling_another_is_permanent_only_by_itself() -> None:
    invalid = raised(lambda: Order.model_validate({}))

    assert (TRANSIENT, "TIMEOUT") == kind_and_code(chained(RuntimeError("x"), context=TimeoutError()))
    assert (TRANSIENT, "RUNTIME_ERROR") == kind_and_code(chained(RuntimeError("x"), context=invalid))


def test_the_text_and_type_are_the_outer_errors() -> None:
    failure = classify(chained(RuntimeError("could not charge"), cause=TimeoutError("read")), now=NOW)

    assert ("could not charge", "RuntimeError") == (failure.text, failure.error_type)


def test_a_ring_of_causes_ends() -> None:
    one, other = RuntimeError("a"), RuntimeError("b")
    one.__cause__, other.__cause__ = other, one

    assert (TRANSIENT, "RUNTIME_ERROR") == kind_and_code(one)


def test_a_group_is_as_permanent_as_its_worst_member() -> None:
    invalid = raised(lambda: Order.model_validate({}))
    assert isinstance(invalid, Exception)
    group = ExceptionGroup("two", [TimeoutError("t"), ExceptionGroup("inner", [invalid])])

    assert (PERMANENT, "VALIDATION_FAILED") == kind_and_code(group)
    assert (TRANSIENT, "TIMEOUT") == kind_and_code(ExceptionGroup("one", [TimeoutError("t"), KeyError("k")]))


def test_a_task_groups_failure_is_its_members() -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    async def fail() -> None:
        raise TimeoutError("slow")

    failure = classify(raised(lambda: asyncio.run(work())), now=NOW)

    assert ("TIMEOUT", "slow", "TimeoutError") == (failure.code, failure.text, failure.error_type)


def test_a_huge_or_deep_group_is_looked_at_within_limits() -> None:
    wide = ExceptionGroup("wide", [KeyError(n) for n in range(MAX_MEMBERS * 10)])
    deep: Exception = KeyError("deep")
    for _ in range(500):
        deep = ExceptionGroup("deep", [deep])

    assert (TRANSIENT, "KEY_ERROR") == kind_and_code(wide)
    assert (TRANSIENT, "KEY_ERROR") == kind_and_code(deep)


# ------------------------------------------------------------------------------------------------ signals


def test_a_signal_is_found_inside_nested_groups() -> None:
    signal = RetryLater("30s")

    assert signal is find_signal(signal)
    assert signal is find_signal(BaseExceptionGroup("a", [KeyError("x"), BaseExceptionGroup("b", [signal])]))
    assert find_signal(KeyError("x")) is None


def test_of_several_signals_the_most_final_one_decides() -> None:
    signals: list[Signal] = [Requeue(), RetryLater(), DeadLetter("bad")]

    assert signals[2] is find_signal(BaseExceptionGroup("all", signals))
    assert signals[1] is find_signal(BaseExceptionGroup("two", signals[:2]))


def test_a_signal_leaves_a_real_task_group_unharmed() -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(give_up())

    async def give_up() -> None:
        raise DeadLetter("no such order")

    assert isinstance(find_signal(raised(lambda: asyncio.run(work()))), DeadLetter)


# ------------------------------------------------------------------------------------------------ text


def test_a_text_is_cut_cleaned_and_never_empty() -> None:
    huge = classify(ValueError("界" * 100_000), now=NOW).text

    assert len(huge.encode()) <= MAX_TEXT_BYTES
    assert "bad\ufffdbyte\ufffd" == error_text(ValueError("bad\x00byte\ud800"))
    assert ["ValueError", "ValueError"] == [error_text(ValueError()), error_text(ValueError("  "))]


class Hostile(Exception):
    """Everything that can be asked of it raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Chameleon(Exception):
    """Has every attribute, none of them sensible."""

    def __getattr__(self, name: str) -> Any:
        return Chameleon()

    def __call__(self, *arguments: Any) -> Any:
        return Chameleon()


@pytest.mark.parametrize("kind", [Hostile, Chameleon])
def test_an_error_whose_own_code_misbehaves_is_transient_under_its_name(kind: type[Exception]) -> None:
    failure = classify(kind(), now=NOW)

    assert (TRANSIENT, kind.__name__.upper()) == (failure.kind, failure.code)
    assert failure.text


def test_a_type_is_named_with_its_module_but_a_builtin_without() -> None:
    assert ["ValueError", "json.decoder.JSONDecodeError"] == [
        error_type(ValueError()),
        error_type(raised(lambda: json.loads(""))),
    ]


@given(
    st.text(st.characters()), st.integers() | st.text() | st.none(), st.integers(-1, 700) | st.booleans() | st.text()
)
def test_no_error_whatever_it_carries_raises_out_of_the_classifier(text: str, code: Any, status: Any) -> None:
    error = a_class("urllib.error", "Odd")(text)
    error.code, error.status, error.headers = code, status, {"Retry-After": text}  # type: ignore[attr-defined]

    failure = classify(error, now=NOW)

    assert failure.text.strip()
    assert failure.text.encode()
    assert failure.code
