"""Help that teaches, completion, versions, and how a command line goes wrong."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from redrive.cli.root import SECTIONS, app
from tests.surfaces.conftest import COMMAND, Cli, clean_environment

ROOT: Any = typer.main.get_command(app)


def commands(command: Any = ROOT, path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Every command that does something, by what one types."""
    if not hasattr(command, "commands"):
        return [(" ".join(path), command)]
    return [found for name, child in command.commands.items() for found in commands(child, (*path, name))]


ALL = commands()
NAMES = [name for name, _ in ALL]

EXPECTED = {
    "demo", "up", "work", "serve", "publish", "backup", "restore", "queues list", "dlq list", "dlq show", "dlq stats",
    "dlq redrive", "dlq review", "dlq close", "dlq restore", "dlq jobs", "dlq resume", "dlq abort",
}  # fmt: skip


def test_every_command_is_there() -> None:
    assert set(NAMES) >= EXPECTED


@pytest.mark.parametrize(("name", "command"), ALL, ids=NAMES)
def test_every_command_says_what_it_does_and_shows_an_example(name: str, command: Any) -> None:
    assert f"redrive {name}" in command.help
    assert command.short_help
    assert len(command.short_help) <= 60


@pytest.mark.parametrize(("name", "command"), ALL, ids=NAMES)
def test_every_option_and_argument_is_documented(name: str, command: Any) -> None:
    bare = [parameter.name for parameter in command.params if not (parameter.help or "").strip()]

    assert [] == bare


@pytest.mark.parametrize(("name", "command"), ALL, ids=NAMES)
def test_every_command_speaks_json(name: str, command: Any) -> None:
    assert any("--json" in parameter.opts for parameter in command.params)


@pytest.mark.parametrize("name", ["dlq redrive", "dlq review", "dlq close", "dlq restore", "dlq abort", "restore"])
def test_every_verb_that_changes_something_can_be_tried_and_asks(name: str) -> None:
    options = {option for parameter in dict(ALL)[name].params for option in parameter.opts}

    assert {"--dry-run", "--yes"} <= options


def test_help_shows_every_command_in_a_section(cli: Cli) -> None:
    shown = cli("--help")

    assert 0 == shown.code
    for title, names in SECTIONS.items():
        assert f"{title}:" in shown.out
        assert all(re.search(rf"^  {name} ", shown.out, re.MULTILINE) for name in names)
    assert {name.split()[0] for name in NAMES} == {name for names in SECTIONS.values() for name in names}


@pytest.mark.parametrize("arguments", [("dlq", "redrive"), ("publish",), ("work",)])
def test_the_help_of_a_command_lists_all_its_options(cli: Cli, arguments: tuple[str, ...]) -> None:
    shown = cli(*arguments, "--help")

    wanted = [option for parameter in dict(ALL)[" ".join(arguments)].params for option in parameter.opts]
    assert 0 == shown.code
    assert [] == [option for option in wanted if option.startswith("--") and option not in shown.out]


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    assert f"redrive {version('redrive')}\n" == cli("--version").out


def test_no_argument_at_all_shows_the_help(cli: Cli) -> None:
    shown = cli()

    assert 2 == shown.code
    assert "redrive demo" in shown.out + shown.err


def test_help_loads_neither_worker_nor_storage_nor_tables() -> None:
    """A command line that is slow to start is not used."""
    script = (
        "import sys\nfrom redrive.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print('LOADED', *sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.rpartition("LOADED ")[2].split())
    assert set() == loaded & {"asyncio", "sqlite3", "rich.table", "starlette", "uvicorn", "msgspec", "structlog"}
    assert set() == {name for name in loaded if name.startswith(("redrive.sqlite", "redrive.service"))}


def test_the_shell_completes_commands_and_choices(here: Path) -> None:
    def complete(words: str) -> str:
        environment = clean_environment(
            _REDRIVE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1)
        )
        return subprocess.run([*COMMAND], env=environment, cwd=here, capture_output=True, text=True, check=False).stdout

    assert {"list", "show", "stats", "redrive", "review", "close"} <= set(complete("redrive dlq ").split())
    assert {"pending", "reviewed", "replayed", "closed"} <= set(complete("redrive dlq list --state ").split())


def test_a_completion_script_can_be_had(here: Path) -> None:
    environment = clean_environment(_REDRIVE_COMPLETE="source_bash")

    done = subprocess.run([*COMMAND], env=environment, cwd=here, capture_output=True, text=True, check=False)

    assert "_REDRIVE_COMPLETE" in done.stdout


# ------------------------------------------------------------------------------------------------- going wrong


@pytest.mark.parametrize(
    ("arguments", "text", "hint"),
    [
        (("dlq", "lits"), "No such command", "--help"),
        (("dlq", "show"), "LETTER", "redrive dlq show --help"),
        (("dlq", "list", "--limit", "0"), "limit", "redrive dlq list --help"),
        (("dlq", "list"), "No app and no broker", "--broker"),
        (("dlq", "list", "--broker", "sqlite:///nowhere.db"), "no file", "--app"),
        (("dlq", "list", "--broker", "memory://"), "inside one process", "--app"),
        (("dlq", "list", "--broker", "kafka://x"), "kafka", "sqlite://"),
        (("dlq", "list", "--app", "shop:app", "--broker", "sqlite:///x.db"), "together", ""),
        (("dlq", "list", "--app", "shop:app", "--since", "2025-10-26T02:30:00"), "without an offset", "Z"),
        (("dlq", "list", "--app", "shop:app", "--since", "yesterday"), "no time", "2h"),
        (("dlq", "list", "orders", "refunds", "--app", "shop:app"), "One queue at a time", ""),
        (("dlq", "redrive", "--app", "shop:app"), "Which letters", "--all"),
        (("dlq", "redrive", "orders", "--rate", "fast", "--app", "shop:app"), "--rate", "5/s"),
        (("dlq", "close", "--app", "shop:app"), "Which letters", "--all"),
        (("work", "nothing:app"), "no module", "directory"),
        (("work", "shop:ap"), "does not exist", "shop:app"),
        (("work", "shop:hello"), "is a function", "shop:app"),
        (("work", "no such.module"), "names no app", "MODULE:APP"),
        (("work", "broken:app"), "ZeroDivisionError", "Nothing was started"),
        (("work", "unfinished:app"), "unfinished.py:2", "Nothing was started"),
        (("work", "leaving:app"), "SystemExit: 3", "leaving.py:1"),
        (("dlq", "list", "--broker", "shop.db"), "no URL", "sqlite:///shop.db"),
        (("dlq", "list", "--broker", "sqlite:///shop.db?mode=ro"), "no options", "%3F"),
        (("up", "shop:app", "--host", ""), "host is empty", "127.0.0.1"),
        (("work", "shop:app", "--queues", "ordres"), "ordres", "orders"),
        (("work", "shop:app", "--http", "9000"), "HOST:PORT", "127.0.0.1"),
        (("work", "shop:app", "--grace", "soon"), "--grace", "30s"),
        (("publish", "orders", "{}", "--once", "--app", "shop:app"), "--key", ""),
        (("publish", "orders", "{}", "--header", "x", "--app", "shop:app"), "NAME=VALUE", ""),
        (("publish", "orders", "--file", "none.jsonl", "--app", "shop:app"), "none.jsonl", ""),
    ],
)
def test_a_mistake_is_named_with_what_to_do(
    cli: Cli, here: Path, arguments: tuple[str, ...], text: str, hint: str
) -> None:
    (here / "broken.py").write_text("1 / 0\n")
    (here / "unfinished.py").write_text("x = 1\ndef (\n")
    (here / "leaving.py").write_text("raise SystemExit(3)\n")

    shown = cli(*arguments, "--json")

    assert 2 == shown.code, shown
    assert "" == shown.out
    assert {"code", "text", "hint"} == set(shown.error)
    assert text in shown.error["text"]
    assert hint in shown.error["hint"] + shown.error["text"]
    assert "Traceback" not in shown.err
    assert not (here / "nowhere.db").exists()


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_error(here: Path, closed: str) -> None:
    command = f"{shlex.join(COMMAND)} publish orders {{}} --app shop:app {closed}"

    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=here, env=clean_environment(), input="{}", capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("publish", "orders", "{}", "--app", "shop:app"), ("doctor", "--app", "shop:app")],
)
def test_output_that_cannot_be_written_is_said(here: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], cwd=here, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip

    assert 70 == done.returncode
    assert "Error: The system refused the output: No space left on device." == done.stderr.strip()


def test_a_mistake_is_a_sentence_for_a_person(cli: Cli) -> None:
    shown = cli("dlq", "list", "--broker", "sqlite:///nowhere.db")

    assert 2 == shown.code
    assert shown.err.startswith('Error: There is no file "nowhere.db".')


def test_a_password_in_a_broker_url_is_never_shown(cli: Cli) -> None:
    shown = cli("dlq", "list", "--broker", "kafka://shop:s3cret@broker/")

    assert "s3cret" not in shown.err + shown.out


def test_an_unknown_setting_is_named(cli: Cli) -> None:
    shown = cli("dlq", "list", "--json", REDRIVE_BROKR="sqlite:///x.db")

    assert 2 == shown.code
    assert "broker" in shown.error["hint"]


def test_the_broker_comes_from_the_environment_or_the_file(cli: Cli, here: Path) -> None:
    assert 0 == cli("publish", "orders", "{}", "--app", "shop:app").code
    (here / "redrive.toml").write_text('broker = "sqlite:///shop.db"\n')

    by_file = cli("queues", "list", "--json")
    (here / "redrive.toml").unlink()
    by_environment = cli("queues", "list", "--json", REDRIVE_BROKER="sqlite:///shop.db")

    assert ["orders"] == [queue["queue"] for queue in by_file.json["queues"]]
    assert by_file.json == by_environment.json


ODD = """
from redrive import Redrive

class Odd(Redrive):
    async def open(self):
        raise ValueError("the odd one")

app = Odd("odd", broker="memory://")

@app.consumer("orders")
async def handle(order): ...
"""


@pytest.mark.parametrize("arguments", [("dlq", "list"), ("alerts",)])
def test_what_nobody_foresaw_is_one_line_and_never_the_code_of_a_finding(
    cli: Cli, here: Path, arguments: tuple[str, ...]
) -> None:
    (here / "odd.py").write_text(ODD)

    shown = cli(*arguments, "--app", "odd:app", "--json")

    assert 70 == shown.code
    assert "unforeseen" == shown.error["code"]
    assert "ValueError: the odd one (odd.py:6, in open)" in shown.error["text"]
    assert "what it had done by then is done" in shown.error["text"]
    assert "REDRIVE_LOG_LEVEL=debug" in shown.error["hint"]
    assert "Traceback" not in shown.err


def test_its_traceback_is_shown_to_who_asks_and_by_what_would_have_stayed(redrive: Cli, here: Path) -> None:
    (here / "odd.py").write_text(ODD)

    asked = redrive("dlq", "list", "--app", "odd:app", REDRIVE_LOG_LEVEL="debug")
    stayed = redrive("work", "odd:app")

    for shown in (asked, stayed):
        assert 70 == shown.code, shown
        assert "Traceback (most recent call last)" in shown.err
        assert "Error: Something nobody foresaw: ValueError: the odd one" in shown.err


def test_where_one_could_not_look_it_is_never_said_that_something_was_found(cli: Cli) -> None:
    shown = cli("alerts", "--state", "nowhere/alerts.json", "--app", "shop:app")

    assert (2, 'Error: The system refused "nowhere/alerts.json.part": No such file or directory.') == (
        shown.code, shown.err.splitlines()[-1],
    )  # fmt: skip
