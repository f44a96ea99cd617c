"""Documentation that cannot fall behind: links lead somewhere, examples run, commands and options exist."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from redrive.cli.root import app as command_line
from redrive.runtime.settings import load_settings
from tests.docs.pages import ROOT, Page, pages

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_to_a_file(page: Page) -> None:
    dead = [target for target in page.links() if not (page.path.parent / target).exists()]

    assert [] == dead


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks("python")], ids=str)
def test_every_python_example_runs(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run one after the other, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("docs_example")
    monkeypatch.setitem(sys.modules, "docs_example", module)

    for block in page.blocks("python"):
        code = compile("\n" * (block.line - 1) + block.text, str(page.path), "exec")
        exec(code, module.__dict__)  # noqa: S102 - our own documentation


def _redrive_commands() -> list[tuple[str, str]]:
    return [(str(page), part.strip()) for page in PAGES for line in page.commands() for part in _parts(line)]


def _parts(line: str) -> list[str]:
    """The redrive commands in a line that may pipe or be started by something else."""
    stages = re.split(r"\s\|\s|\s2>&1", line)
    return [stage[stage.index("redrive ") :] for stage in stages if re.search(r"(^|\s)redrive ", stage)]


@pytest.mark.parametrize(("page", "command"), _redrive_commands())
def test_every_documented_command_parses(page: str, command: str) -> None:
    found: Any = typer.main.get_command(command_line)
    words = shlex.split(command)[1:]
    path = "redrive"
    while hasattr(found, "commands"):
        assert words[:1] != [], f"{page}: {path} is no command by itself"
        assert words[0] in found.commands, f"{page}: {path} has no command {words[0]}"
        path, found, words = f"{path} {words[0]}", found.commands[words[0]], words[1:]

    context = found.make_context(path, list(words))

    assert path == context.info_name


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks("toml")], ids=str)
def test_every_settings_example_is_accepted(page: Page, tmp_path: Path) -> None:
    for block in page.blocks("toml"):
        file = tmp_path / "redrive.toml"
        file.write_text(block.text, "utf-8")

        settings = load_settings(environment={}, file=file)

        assert tomllib.loads(block.text).keys() <= {name.removesuffix("_ms") for name in type(settings).__slots__}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_make_target_that_is_named_exists(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", page.text))

    assert set() == named - targets


def test_every_page_can_be_reached_from_the_front_page() -> None:
    front = [ROOT / "README.md"]
    reached: set[Path] = set()
    while front:
        path = front.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        front += [(path.parent / target).resolve() for target in Page(path).links()]

    assert set() == {page.path for page in PAGES} - reached


def test_a_page_says_only_what_fits_a_line() -> None:
    long = [
        f"{page}:{number}"
        for page in PAGES
        if "reference" not in page.path.parts
        for number, line in enumerate(page.text.splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")
    ]

    assert [] == long
