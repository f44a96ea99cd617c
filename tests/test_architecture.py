"""The layers hold: who may import whom (import-linter, from pyproject.toml), and core touches nothing of the world."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "redrive" / "core"

WORLDLY = frozenset(
    {"asyncio", "concurrent", "ctypes", "http", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random"}
    | {"secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys"}
    | {"tempfile", "threading", "time", "urllib", "uuid"}
)
"""Modules with a clock, a file, a socket, randomness, a task or a log in them."""

CLOCKS = frozenset({("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")})
"""`datetime` is allowed for its arithmetic; these are the calls that read a clock."""


def core_modules() -> list[Path]:
    return sorted(CORE.rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_every_layer_imports_only_from_those_below_it() -> None:
    linter = Path(sys.executable).parent / "lint-imports"

    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_only_the_pure_standard_library_and_itself(path: Path) -> None:
    found = set(imports(ast.parse(path.read_text("utf-8"))))

    outside = {name for name in found if not name.startswith(("redrive.core", "redrive.errors"))}
    foreign = {name for name in outside if name.partition(".")[0] not in sys.stdlib_module_names}
    worldly = {name for name in outside if name.partition(".")[0] in WORLDLY}
    assert (set(), set()) == (foreign, worldly)


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: str(path.relative_to(CORE)))
def test_core_never_reads_a_clock(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))

    calls = {
        (node.func.value.id, node.func.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    }
    assert set() == calls & CLOCKS


def test_importing_redrive_loads_no_optional_driver_and_no_surface() -> None:
    drivers = ["pika", "pydantic", "redrive.brokers.rabbitmq"]
    surfaces = ["typer", "rich", "starlette", "uvicorn", "pytest", "redrive.cli", "redrive.push", "redrive.testing"]
    watched = drivers + surfaces
    script = f"import sys, redrive; print([name for name in {watched} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


def test_the_public_names_are_few_and_all_exist() -> None:
    import redrive

    assert set() == {name for name in redrive.__all__ if not hasattr(redrive, name)}
    assert len(set(redrive.__all__)) == len(redrive.__all__) <= 34
