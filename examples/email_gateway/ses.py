"""Amazon SES, API v2: one signed POST for one mail."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redrive.mail import Failed, outcome_unknown

from .sent import Sent
from .sigv4 import Credentials, signed_headers

PATH = "/v2/email/outbound-emails"
MAX_ANSWER_BYTES = 65_536


class SesError(Exception):
    """SES refused. In the shape of botocore's ClientError, by which redrive knows what each code means."""

    operation_name = "SendEmail"

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"An error occurred ({code}) when calling the SendEmail operation: {message}")
        self.response = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SesSender:
    """An endpoint of SES and who signs."""

    endpoint: str
    credentials: Credentials
    timeout_s: float = 30

    async def send(self, mail: bytes, *, sender: str, recipients: tuple[str, ...]) -> Sent:
        """All recipients in one call; SES takes all or none. Raises `SesError`."""
        request = {
            "FromEmailAddress": sender,
            "Destination": {"ToAddresses": list(recipients)},
            "Content": {"Raw": {"Data": base64.b64encode(mail).decode()}},
        }
        await asyncio.to_thread(self._post, json.dumps(request).encode())
        return Sent(sent=recipients)

    def _post(self, body: bytes) -> str:
        parts = urlsplit(self.endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        host = parts.netloc.rpartition("@")[2]
        headers = signed_headers(self.credentials, host=host, path=PATH, body=body)
        try:
            connection.request("POST", PATH, body=body, headers=headers)
            try:
                answer = connection.getresponse()
                status, told, text = answer.status, answer.headers, answer.read(MAX_ANSWER_BYTES)
            except (OSError, http.client.HTTPException) as error:
                # The whole request is on its way: SES may have taken the mail.
                raise Failed(outcome_unknown(repr(error), code="SES_OUTCOME_UNKNOWN", after="the request")) from error
        finally:
            connection.close()
        document = _document(text)
        if status == 200:
            return str(document.get("MessageId", ""))
        code = told.get("x-amzn-errortype", "") or str(document.get("__type", "")) or f"HTTP_{status}"
        message = document.get("message") or document.get("Message") or f"HTTP status {status}"
        raise SesError(code.partition(":")[0].rpartition("#")[2], str(message), status)


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
