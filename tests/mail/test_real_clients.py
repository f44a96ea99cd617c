"""Real mail clients against a real server: what they raise is classified as what the server did."""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Callable
from typing import Any

import aiosmtplib
import pytest

from redrive.core.policy.classify import classify
from redrive.core.policy.failure import Failure, FailureKind, Scope
from redrive.core.recipients import Recipients
from redrive.testing.mail import SmtpServer

TRANSIENT, PERMANENT, UNKNOWN = FailureKind.TRANSIENT, FailureKind.PERMANENT, FailureKind.UNKNOWN
SENDER, TO = "me@x.example", ["a@x.example", "b@x.example"]
TEXT = "Subject: hello\r\n\r\n.dots\r\nbye\r\n"


async def by_smtplib(server: SmtpServer, *, login: bool = False) -> dict[str, Any]:
    def send() -> dict[str, Any]:
        with smtplib.SMTP(server.host, server.port, timeout=30) as client:
            if login:
                client.login("user", "wrong")
            return client.sendmail(SENDER, TO, TEXT)

    return await asyncio.to_thread(send)


async def by_aiosmtplib(server: SmtpServer, *, login: bool = False) -> dict[str, Any]:
    client = aiosmtplib.SMTP(hostname=server.host, port=server.port, timeout=30, start_tls=False)
    async with client:
        if login:
            await client.login("user", "wrong")
        refused, _ = await client.sendmail(SENDER, TO, TEXT)
        return dict(refused)


CLIENTS = pytest.mark.parametrize("send", [by_smtplib, by_aiosmtplib], ids=["smtplib", "aiosmtplib"])
Send = Callable[..., Any]


async def failure_of(send: Send, server: SmtpServer, **options: Any) -> Failure:
    with pytest.raises(Exception) as caught:
        await send(server, **options)
    return classify(caught.value, now=0)


@CLIENTS
async def test_a_message_arrives_as_it_was_sent(send: Send) -> None:
    async with SmtpServer() as server:
        assert {} == await send(server)

    [mail] = server.mails
    assert (SENDER, tuple(TO), TEXT.encode()) == (mail.sender, mail.recipients, mail.content)
    assert "hello" == mail.message["subject"]


@CLIENTS
@pytest.mark.parametrize(
    ("stage", "reply", "kind", "code"),
    [
        ("mail", "421 4.3.2 shutting down", TRANSIENT, "SMTP_421"),
        ("mail", "550 5.1.8 sender rejected", PERMANENT, "SMTP_550"),
        ("rcpt", "450 4.2.0 greylisted", TRANSIENT, "SMTP_450"),
        ("rcpt", "550 5.1.1 user unknown", PERMANENT, "SMTP_550"),
        ("data", "451 4.3.0 later", TRANSIENT, "SMTP_451"),
        ("answer", "554-5.7.1 blocked\n554 5.7.1 see our page", PERMANENT, "SMTP_554"),
        ("answer", "552 5.2.2 full", PERMANENT, "SMTP_552"),
    ],
)
async def test_a_refusal_is_what_the_server_said(
    send: Send, stage: str, reply: str, kind: FailureKind, code: str
) -> None:
    async with SmtpServer() as server:
        server.refuse(stage, reply)

        failure = await failure_of(send, server)

    assert (kind, code, []) == (failure.kind, failure.code, server.mails)


@CLIENTS
@pytest.mark.parametrize("stage", ["connect", "ehlo", "mail", "rcpt", "data"])
async def test_a_connection_lost_before_the_content_is_sent_is_transient(send: Send, stage: str) -> None:
    async with SmtpServer() as server:
        server.drop(stage)

        failure = await failure_of(send, server)

    assert (TRANSIENT, []) == (failure.kind, server.mails)


@CLIENTS
async def test_a_connection_lost_after_the_end_of_data_is_an_unknown_outcome(send: Send) -> None:
    async with SmtpServer() as server:
        server.drop("answer")

        failure = await failure_of(send, server)

    assert (UNKNOWN, "SMTP_OUTCOME_UNKNOWN", 900_000) == (failure.kind, failure.code, failure.retry_after_ms)
    assert 1 == len(server.mails)


@CLIENTS
async def test_some_recipients_refused_go_into_the_state_of_the_message(send: Send) -> None:
    async with SmtpServer() as server:
        server.refuse("rcpt", "550 5.1.1 user unknown", only="b@")

        refused = await send(server)

    recipients = Recipients.of(TO).after(sent=["a@x.example"], refused=refused)
    assert None is recipients.failure()
    assert ["b@x.example"] == [each.address for each in recipients.each if each.suppress]


@CLIENTS
async def test_all_recipients_refused_are_as_good_as_the_best_of_them(send: Send) -> None:
    async with SmtpServer() as server:
        server.refuse("rcpt", "550 5.1.1 user unknown", only="a@")
        server.refuse("rcpt", "451 4.2.1 busy", only="b@")

        failure = await failure_of(send, server)

    assert (TRANSIENT, "SMTP_451") == (failure.kind, failure.code)


@CLIENTS
async def test_wrong_credentials_are_the_lanes_trouble(send: Send) -> None:
    async with SmtpServer() as server:
        server.refuse("auth", "535 5.7.8 authentication failed")

        failure = await failure_of(send, server, login=True)

    assert (PERMANENT, Scope.LANE) == (failure.kind, failure.scope)
