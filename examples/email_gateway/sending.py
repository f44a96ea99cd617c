"""Sending: through SMTP or through SES, as the environment says. Both answer for each recipient, or raise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from redrive import ConfigurationError

from .sent import Sent
from .ses import SesSender
from .sigv4 import Credentials
from .smtp import SmtpSender


class Sender(Protocol):
    """Hands one mail to a server."""

    async def send(self, mail: bytes, *, sender: str, recipients: tuple[str, ...]) -> Sent:
        """Raises what the client raises where the server could not be reached."""
        ...


def sender_from(environment: Mapping[str, str]) -> Sender:
    """`MAIL_TRANSPORT` smtp (the default) or ses, and the variables of that. Raises `ConfigurationError`."""
    timeout_s = _number(environment, "MAIL_TIMEOUT_SECONDS", 30)
    match environment.get("MAIL_TRANSPORT", "smtp").strip().lower():
        case "smtp":
            return SmtpSender(
                host=environment.get("SMTP_HOST", "127.0.0.1"),
                port=int(_number(environment, "SMTP_PORT", 25)),
                user=environment.get("SMTP_USER") or None,
                password=environment.get("SMTP_PASSWORD") or None,
                with_tls=environment.get("SMTP_STARTTLS", "auto").strip().lower(),
                timeout_s=timeout_s,
            )
        case "ses":
            region = environment.get("AWS_REGION", "eu-central-1")
            return SesSender(
                endpoint=environment.get("SES_ENDPOINT") or f"https://email.{region}.amazonaws.com",
                credentials=Credentials(
                    access_key=_required(environment, "AWS_ACCESS_KEY_ID"),
                    secret_key=_required(environment, "AWS_SECRET_ACCESS_KEY"),
                    region=region,
                    session_token=environment.get("AWS_SESSION_TOKEN") or None,
                ),
                timeout_s=timeout_s,
            )
        case other:
            raise ConfigurationError(f'MAIL_TRANSPORT is {other!r}: it must be "smtp" or "ses".')


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise ConfigurationError(f"{name} is {text!r}: it must be a number above 0.")
    return value


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise ConfigurationError(f"{name} is not set, and MAIL_TRANSPORT is ses.")
    return value
