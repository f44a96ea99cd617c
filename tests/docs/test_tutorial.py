"""The tutorial, typed in by a machine: every file is written, every command run, every shown line looked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, Page

TUTORIALS = [Page(path) for path in sorted((ROOT / "docs" / "tutorial").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=str)
def test_the_tutorial_works_as_written(page: Page, tmp_path: Path) -> None:
    for block in page.blocks("python", "console"):
        if block.language == "python":
            _write(block, tmp_path)
        else:
            _type_in(block, tmp_path, where=f"{page}:{block.line}")


def _write(block: Block, folder: Path) -> None:
    named = re.match(r"# file: (\S+)\n", block.text)
    if named:
        (folder / named[1]).write_text(block.text, "utf-8")


def _type_in(block: Block, folder: Path, *, where: str) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{where}: {command}\n{printed}"
        _compare(shown, done.stdout, f"{where}: {command}\n{printed}")


def _compare(shown: str, printed: str, story: str) -> None:
    """Every shown line is printed, in order; `...` stands for anything."""
    rest = printed
    for line in filter(None, (line.strip() for line in shown.splitlines())):
        pattern = ".*".join(re.escape(piece) for piece in line.split("..."))
        found = re.search(pattern, rest)
        assert found, f"not printed: {line}\n{story}"
        rest = rest[found.end() :]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200", "NO_COLOR": "1"}
