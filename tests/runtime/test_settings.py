"""Settings and consumers: where values come from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import ConfigurationError, MissingExtraError, Redrive, Settings
from redrive.runtime.adapters import masked, sqlite_path
from redrive.runtime.settings import load_settings


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_text('broker = "sqlite:///file.db"\ngrace = "10s"\nconcurrency = 3\n')
    environment = {"REDRIVE_GRACE": "20s", "REDRIVE_CONCURRENCY": "4", "HOME": "/"}

    settings = load_settings({"concurrency": 5}, environment=environment, file=file)

    assert ("sqlite:///file.db", 20_000, 5) == (settings.broker, settings.grace_ms, settings.concurrency)


def test_without_anything_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert Settings() == load_settings(environment={})


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"REDRIVE_GRACEE": "1s"}, "Did you mean grace?"),
        ({"REDRIVE_GRACE": "soon"}, "grace"),
        ({"REDRIVE_CONCURRENCY": "many"}, "concurrency"),
        ({"REDRIVE_CONCURRENCY": "0"}, "concurrency"),
        ({"REDRIVE_DURABILITY": "none"}, "durability"),
        ({"REDRIVE_PAUSE_MAX": "10ms"}, "pause_max"),
        ({"REDRIVE_MAX_DECODED_BYTES": "5"}, "max_decoded_bytes"),
        ({"REDRIVE_CONFIG": "/nowhere.toml"}, "/nowhere.toml"),
        ({"REDRIVE_PORT": "65536"}, "port"),
        ({"REDRIVE_HOST": " "}, "host"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environment=environment)

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"retry": 5}, "retry"),
        ({"concurrency": 0}, "concurrency"),
        ({"lease": "10ms"}, "lease"),
        ({"timeout": 0}, "timeout"),
        ({"rate": "often"}, "rate"),
        ({"dead_letter_queue": "orders"}, "dead_letter_queue"),
        ({"process": True}, "process"),
        ({"breaker": 20}, "breaker"),
        ({"rules": [KeyError]}, "rule"),
    ],
)
def test_a_wrong_argument_of_a_consumer_is_an_error_that_names_it(arguments: dict[str, Any], says: str) -> None:
    app = Redrive("shop", broker="memory://")

    with pytest.raises(ConfigurationError, match=says):

        @app.consumer("orders", **arguments)
        async def handle(order: dict[str, Any]) -> None: ...

    assert {} == dict(app.consumers)


@pytest.mark.parametrize("name", ["", "   ", "a" * 256, "é" * 128])
def test_a_queue_name_has_one_to_255_bytes(name: str) -> None:
    app = Redrive("shop", broker="memory://")

    with pytest.raises(ConfigurationError, match="255 bytes"):

        @app.consumer(name)
        async def handle(order: dict[str, Any]) -> None: ...


def test_two_handlers_of_one_queue_and_handlers_without_a_parameter_are_refused() -> None:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="consumer already"):
        app.consumer("orders")(handle)
    with pytest.raises(ConfigurationError, match="payload"):

        @app.consumer("refunds")
        async def nothing() -> None: ...


def test_a_worker_for_an_unknown_queue_says_which_one_was_meant() -> None:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="Did you mean orders"):
        app.worker(["order"])


def test_urls_name_files_and_hide_passwords() -> None:
    assert sqlite_path("sqlite:///a/b.db") == "a/b.db"
    assert sqlite_path("sqlite:////a/b%20c.db") == "/a/b c.db"
    assert masked("amqp://u:secret@host/v") == "amqp://u:***@host/v"
    assert masked("amqp://u:sec/r:e@t@[::1") == "amqp://u:***@[::1"
    assert masked("sqlite:////a:b@c.db") == "sqlite:////a:b@c.db"
    with pytest.raises(ConfigurationError, match="names no file"):
        sqlite_path("sqlite://a.db")


async def test_an_unknown_scheme_is_refused_when_the_app_opens() -> None:
    with pytest.raises((ConfigurationError, MissingExtraError), match="kafka"):
        await Redrive("shop", broker="kafka://u:secret@host").open()


def test_importing_redrive_imports_no_server_no_cli_and_no_optional_driver() -> None:
    import subprocess
    import sys

    code = "import sys, redrive; print(sorted({n.partition('.')[0] for n in sys.modules} & set(sys.argv[1:])))"
    heavy = ["pydantic", "starlette", "uvicorn", "typer", "rich", "structlog", "prometheus_client", "sqlite3"]
    found = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


RULES = """
[[mail_rules]]
name = "limit"
codes = [554]
text = "problem"
verdict = "transient"
delay = "10m"
"""


def test_mail_rules_stand_in_the_settings_file_or_in_a_file_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES)

    inside = load_settings(file=file, environment={})
    named = load_settings(file=_empty(tmp_path), environment={"REDRIVE_MAIL_RULES": str(file)})
    given = load_settings({"mail_rules": inside.mail_rules}, file=_empty(tmp_path), environment={})

    assert ["limit"] == [rule.name for rule in inside.mail_rules]
    assert inside == named == given


def _empty(folder: Path) -> Path:
    (folder / "empty.toml").write_text("")
    return folder / "empty.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mail_rules = 5", "must be a list of tables"),
        ("mail_rules = [5]", "which is no table"),
        (RULES.replace("codes", "code"), "Did you mean codes?"),
        (RULES.replace('"transient"', '"transent"'), "Did you mean transient?"),
    ],
)
def test_a_wrong_mail_rule_names_the_file_or_the_rule(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)

    with pytest.raises(ConfigurationError) as caught:
        load_settings(file=file, environment={})

    assert said in str(caught.value)


def test_a_file_of_mail_rules_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_settings(file=_empty(tmp_path), environment={"REDRIVE_MAIL_RULES": str(tmp_path / "none.toml")})


def test_mail_rules_of_a_consumer_and_of_the_settings_hold_together() -> None:
    from redrive.mail import MailRule

    shared = MailRule(name="shared", text="x", priority=1)
    app = Redrive("mail", broker="memory://", settings={"mail_rules": [shared]})

    @app.consumer(
        "mails", rules=[MailRule(name="own", text="x", priority=2), MailRule(name="last", text="x", priority=-1)]
    )
    async def send(mail: dict[str, Any]) -> None: ...

    rows = app.consumers["mails"].mail_rules
    assert (["own", "shared"], ["last"]) == ([row.what for row in rows.first], [row.what for row in rows.last])
