"""Secrets from the environment and from a file that changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redrive.errors import ConfigurationError
from redrive.ingest import Gateway, SecretsFile, parse_secrets, secrets_from
from redrive.runtime.app import Redrive
from redrive.runtime.events import Event
from redrive.testing import FakeClock
from tests.ingest.client import send, signed

BODY = b"{}"


def test_secrets_are_a_json_object_of_lists() -> None:
    assert {"courier-x": ("s1", "s2")} == parse_secrets('{"courier-x": ["s1", "s2"]}', origin="X")
    assert {} == secrets_from({}, name="COURIER_SECRETS")
    assert {} == secrets_from({"COURIER_SECRETS": " "}, name="COURIER_SECRETS")


@pytest.mark.parametrize(
    "text", ["{", "[]", '"x"', '{"a": "s3cret"}', '{"a": []}', '{"a": [""]}', '{"a": [7]}', "[" * 9_999]
)
def test_wrong_secrets_are_refused_by_the_variables_name_without_showing_them(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        secrets_from({"COURIER_SECRETS": text}, name="COURIER_SECRETS")

    assert "COURIER_SECRETS" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_a_changed_file_is_read_and_a_broken_one_leaves_the_secrets_as_they_were(
    app: Redrive, clock: FakeClock, tmp_path: Path, happened: list[Event]
) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"courier-x": ["one"]}))
    gateway = Gateway(app, "q", sources=SecretsFile(path))

    async def status(secret: str) -> int:
        await clock.advance(1_000)
        seconds = str(clock.now() // 1_000)
        return (await send(gateway, BODY, signed(BODY, secret=secret, timestamp=seconds))).status

    assert [202, 401] == [await status("one"), await status("two")]
    path.write_text(json.dumps({"courier-x": ["one", "two"]}))
    assert [202, 202] == [await status("one"), await status("two")]
    path.write_text("{ half a fi")
    assert [202, 202] == [await status("one"), await status("two")]
    path.unlink()
    assert 202 == await status("two")

    names = [event.name for event in happened if event.name.startswith("ingest.sources")]
    assert "ingest.sources_changed" == names[0]
    assert {"ingest.sources_refused"} == set(names[1:])


def test_a_missing_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        Gateway(Redrive("x", broker="memory://"), "q", sources=SecretsFile(tmp_path / "no.json"))
