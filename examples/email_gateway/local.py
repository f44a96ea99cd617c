"""A mail server and an SES endpoint on this machine, to try the gateway with. Nothing leaves the machine.

    python -m examples.email_gateway.local --smtp 2525 --ses 2526

Who is written to decides: `unknown@…` is refused for good, `busy@…` for now, `full@…` has no room, `gone@…` loses the
connection after the mail was sent; everyone else gets their mail, printed in one line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from redrive.testing.mail import DROP, SesEndpoint, SmtpServer

RCPT = {
    "unknown@": "550 5.1.1 user unknown",
    "busy@": "450 4.2.1 mailbox busy, try again later",
    "full@": "452 4.2.2 mailbox full",
}


def smtp_answer(stage: str, argument: str) -> str | None:
    """What the mail server says, by the address."""
    if stage == "rcpt":
        return next((reply for who, reply in RCPT.items() if who in argument), None)
    if stage == "answer":
        print(f"mail: {argument}", flush=True)
        return DROP if "gone@" in argument else None
    return None


def ses_answer(stage: str, argument: str) -> str | None:
    """What SES says, by the address."""
    if stage == "send" and "unknown@" in argument:
        return "MessageRejected: Address is on the suppression list"
    if stage == "send" and "busy@" in argument:
        return "TooManyRequestsException: Maximum sending rate exceeded."
    if stage == "answer":
        print(f"ses: {argument}", flush=True)
        return DROP if "gone@" in argument else None
    return None


async def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m examples.email_gateway.local")
    parser.add_argument("--smtp", type=int, default=2525)
    parser.add_argument("--ses", type=int, default=2526)
    asked = parser.parse_args()
    async with SmtpServer(smtp_answer, port=asked.smtp) as smtp, SesEndpoint(ses_answer, port=asked.ses) as ses:
        print(f"SMTP on port {smtp.port}, SES on {ses.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main()))
