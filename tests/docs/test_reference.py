"""The reference is what the code says, and names everything a person can meet."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.generate import FOLDER, pages
from redrive import errors
from redrive.cli.root import app as command_line
from redrive.runtime.events import EVENTS
from redrive.runtime.metrics import METRICS
from redrive.runtime.settings import setting_names


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_page_is_what_the_generator_would_write_now(name: str) -> None:
    written = (FOLDER / name).read_text("utf-8")

    assert pages()[name] == written, "run: make docs"


def test_no_page_is_left_of_something_that_is_gone() -> None:
    assert set(pages()) == {path.name for path in FOLDER.glob("*.md")}


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_and_each_of_its_fields_is_documented(event: str) -> None:
    section = _section("events.md", f"## `{event}`")

    assert [] == [field for field in EVENTS[event].fields if f"`{field}`" not in section]


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_documented(metric: str) -> None:
    assert f"`redrive_{metric}" in _read("metrics.md")


@pytest.mark.parametrize("setting", setting_names())
def test_every_setting_is_documented(setting: str) -> None:
    text = _read("settings.md")

    assert f"| `{setting}` | `REDRIVE_{setting.upper()}` |" in text


def test_every_error_is_documented_under_its_code() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.RedriveError)]

    text = _read("errors.md")

    assert [] == [kind.code for kind in kinds if f"## `{kind.code}`\n\n`{kind.__name__}`" not in text]


def test_every_command_and_each_of_its_options_is_documented() -> None:
    root: Any = typer.main.get_command(command_line)
    text = _read("commands.md")

    missing = [
        path for path, names in _commands(root, "redrive") if f"### `{path}`" not in text or _absent(text, names)
    ]

    assert [] == missing


def _commands(command: Any, path: str) -> list[tuple[str, list[str]]]:
    if hasattr(command, "commands"):
        return [row for name, each in command.commands.items() for row in _commands(each, f"{path} {name}")]
    return [(path, [opt for each in command.params if each.param_type_name == "option" for opt in each.opts])]


def _absent(text: str, names: list[str]) -> list[str]:
    return [name for name in names if name != "--help" and f"`{name}`" not in text]


def _section(page: str, title: str) -> str:
    return _read(page).partition(f"{title}\n")[2].partition("\n## ")[0]


def _read(name: str) -> str:
    path: Path = FOLDER / name
    return path.read_text("utf-8")
