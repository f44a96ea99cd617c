"""Pusher: an ordinary consumer's handler that is an HTTP client. All else (retries, claims, dead letters, breaker,
drain) is what every consumer has.

A message in hand is posted once per attempt; the claim that the consumer holds keeps a second worker from posting it
at the same time. Killed right after the service answered and before the end is on record, the message is posted
again: a service tells repeats by `webhook-id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from redrive.core.policy.classify import classify, error_text, error_type
from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.signals import Requeue
from redrive.core.units import Duration, UnixMs, duration_ms
from redrive.errors import ConfigurationError, MissingExtraError
from redrive.ingest.schemes import StandardWebhooks
from redrive.push.headers import request_headers
from redrive.push.statuses import Outcome, outcome_of_status
from redrive.push.target import parse_target
from redrive.push.timing import FIELD, Waiting
from redrive.runtime.delivery import Delivery

if TYPE_CHECKING:
    from redrive.push.client import Answer, PushClient
    from redrive.runtime.app import Redrive

CONCURRENCY: Final = 32
TIMEOUT: Final = "30s"
KEEP_BYTES: Final = 1_000
MAX_KEEP_BYTES: Final = 4_000
"""What is kept of an answer shares the 4 096 bytes of an error text with the status line."""
MAX_SECRETS: Final = 10

TARGET_REFUSED: Final = "TARGET_REFUSED"


class Pusher:
    """Posts a delivery and says how it ended. Made by `push_to`."""

    def __init__(
        self,
        client: PushClient,
        *,
        app: Redrive,
        keys: Sequence[bytes],
        gives_up_on_4xx: bool,
        delay_name: str,
    ) -> None:
        self._client = client
        self._app = app
        self._keys = tuple(keys)
        self._gives_up_on_4xx = gives_up_on_4xx
        self._waiting = Waiting(name=delay_name)

    async def __call__(self, body: bytes, delivery: Delivery) -> Outcome:
        """None where the service has taken the message."""
        now = self._app.clock.now()
        left_ms = self._waiting.left_ms(delivery.message, now)
        if left_ms:
            return Requeue(left_ms / 1_000, reason=f"It may not be processed before {left_ms} ms from now.")
        headers = request_headers(
            delivery.message,
            queue=delivery.queue,
            attempt=delivery.attempt,
            max_attempts=delivery.max_attempts,
            now=now,
            keys=self._keys,
        )
        from redrive.push.client import CLIENT_ERRORS  # noqa: PLC0415 - loaded by whoever made the client

        try:
            answer = await self._client.post(body, headers)
        except CLIENT_ERRORS as error:
            return failure_of(error, now=self._app.clock.now())
        return self._outcome(answer)

    def _outcome(self, answer: Answer) -> Outcome:
        return outcome_of_status(
            answer.status,
            now=self._app.clock.now(),
            retry_after=answer.retry_after,
            text=answer.text,
            gives_up_on_4xx=self._gives_up_on_4xx,
        )


def failure_of(error: Exception, *, now: UnixMs) -> Failure:
    """No answer came: always worth another attempt, for it says nothing about this message."""
    from redrive.push.client import refused  # noqa: PLC0415 - loaded by whoever made the client

    refusal = refused(error)
    if refusal is not None:
        return Failure(
            kind=FailureKind.TRANSIENT,
            code=TARGET_REFUSED,
            text=f"{error_text(refusal)} Nothing was sent.",
            error_type=error_type(refusal),
        )
    found = classify(error, now=now)
    return Failure(kind=FailureKind.TRANSIENT, code=found.code, text=found.text, error_type=found.error_type)


def push_to(
    app: Redrive,
    queue: str,
    url: str,
    *,
    secrets: Sequence[str] = (),
    authorization: str | None = None,
    timeout: Duration = TIMEOUT,
    allow_private: bool = False,
    gives_up_on_4xx: bool = False,
    keep_bytes: int = KEEP_BYTES,
    delay_name: str = FIELD,
    concurrency: int | None = None,
    **consumer: Any,
) -> None:
    """Register a consumer of `queue` that posts its messages to `url`; the status decides (`redrive.push.statuses`).

        push_to(app, "orders", "https://service.example/orders", secrets=["whsec_…"], retry=Retry(max_attempts=11))

    `secrets`: each signs every request (Standard Webhooks); more than one while a secret is changed. `authorization`:
    the Authorization header, else user and password of the URL. `timeout`: one request, from the look-up of the name
    to the end of the answer. `allow_private`: addresses inside your network too. `gives_up_on_4xx`: a 4xx other than
    409, 425 and 429 is a dead letter at once. `keep_bytes`: how much of an answer goes into the history. `delay_name`:
    header or JSON member that says after how many ms a message may be processed. `consumer`: as `Redrive.consumer`.

    Raises `ConfigurationError` naming what is wrong, and `MissingExtraError` without the extra `push`.
    """
    if not 0 <= keep_bytes <= MAX_KEEP_BYTES:
        raise ConfigurationError(f"keep_bytes is {keep_bytes!r}: it must be between 0 and {MAX_KEEP_BYTES}.")
    timeout_ms = duration_ms(timeout, field="push timeout")
    if timeout_ms == 0:
        raise ConfigurationError(f"push timeout is {timeout!r}: it must be longer than nothing.")
    connections = app.settings.concurrency if concurrency is None else concurrency
    connections = CONCURRENCY if connections is None else connections
    client = _client(
        parse_target(url, authorization=authorization, allow_private=allow_private),
        connections=connections,
        timeout_ms=timeout_ms,
        keep_bytes=keep_bytes,
        allow_private=allow_private,
    )
    pusher = Pusher(
        client,
        app=app,
        keys=_keys(secrets),
        gives_up_on_4xx=gives_up_on_4xx,
        delay_name=delay_name,
    )
    app.consumer(queue, concurrency=connections, http_status=True, **consumer)(pusher)
    app.on_close(client.close)


def _client(*arguments: Any, **options: Any) -> PushClient:
    try:
        from redrive.push.client import PushClient  # noqa: PLC0415 - loaded only where used
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "redrive":
            raise
        raise MissingExtraError(
            f'Pushing needs the package "{error.name}", which is not installed.',
            hint='Run: pip install "redrive[push]"',
        ) from error
    return PushClient(*arguments, **options)


def _keys(secrets: Sequence[str]) -> list[bytes]:
    if isinstance(secrets, str):
        raise ConfigurationError("push secrets is one text: give a list of secrets.")
    if len(secrets) > MAX_SECRETS:
        raise ConfigurationError(f"push secrets are {len(secrets)}: at most {MAX_SECRETS} may sign one request.")
    return [StandardWebhooks().key(secret) for secret in secrets]
