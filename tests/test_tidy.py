"""Style as a test: sizes, parameters, names, docstrings, and what must never stand in the project's text."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "examples", "bench", "campaign", "docs")
LIMIT_FUNCTION = 70
LIMIT_MODULE = 600
LIMIT_POSITIONAL = 3

VAGUE_MODULES = frozenset({"utils", "util", "common", "helpers", "misc", "manager", "data", "info"})
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
OUTSIDE = re.compile(
    r"/(work|farm|root|home)/|\.\./shared|py(pi)\.(org|io)|pythonho(sted)\.|npmjs\.|registry\.|proxy\.golang",
    re.IGNORECASE,
)
"""Paths of one person's machine, and registry hosts: neither belongs in a project."""

SLEEP = re.compile(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))")
SLEEP_REASON = re.compile(r"#\s*sleeps?:\s*\S")
"""A test that really must let time pass says why on the same line: `# sleep: the lease must end`."""


def tracked(*folders: str, ending: str = "") -> list[Path]:
    """Files of the project below the folders (all of it without any), as git knows them, else as they lie there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        found = [ROOT / line for line in done.stdout.splitlines()]
    else:
        found = [
            path for folder in folders or (".",) for path in (ROOT / folder).rglob("*") if ".venv" not in path.parts
        ]
    return sorted(path for path in found if path.is_file() and path.name.endswith(ending))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def at(path: Path, node: ast.stmt) -> str:
    return f"{name(path)}:{node.lineno}"


def test_no_function_is_longer_than_seventy_lines() -> None:
    long = [
        f"{at(path, node)} {node.name} has {lines_of(path, node)} lines"
        for path in tracked(*CODE, "tests", ending=".py")
        for node in functions(path)
        if lines_of(path, node) > LIMIT_FUNCTION
    ]

    assert [] == long


def lines_of(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the end; of a command the body alone, for its signature is the table of its options."""
    start = node.body[0].lineno if path.is_relative_to(ROOT / "src" / "redrive" / "cli") else node.lineno
    return (node.end_lineno or start) - start + 1


def test_no_module_is_longer_than_six_hundred_lines() -> None:
    sizes = {name(path): len(text(path).splitlines()) for path in tracked(*CODE, "tests", ending=".py")}

    assert {} == {where: size for where, size in sizes.items() if size > LIMIT_MODULE}


def test_no_function_takes_more_than_three_positional_parameters() -> None:
    wide = []
    for path in tracked(*CODE, ending=".py"):
        for node in functions(path):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls")]
            if len(names) > LIMIT_POSITIONAL and not _is_called_by_others(node):
                wide.append(f"{at(path, node)} {node.name}({', '.join(names)})")

    assert [] == wide


def _is_called_by_others(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """By a command line (its options are parameters), by pytest (its fixtures are), or by `with`."""
    decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    is_command = ".command(" in decorators or ".callback(" in decorators
    return is_command or node.name.startswith("test_") or node.name in ("__exit__", "__aexit__")


def test_module_names_say_what_is_inside() -> None:
    vague = [name(path) for path in tracked("src", ending=".py") if path.stem in VAGUE_MODULES]

    assert [] == vague


def test_every_public_module_class_and_function_is_documented() -> None:
    missing = [
        where for path in tracked("src", ending=".py") for where in _undocumented(path) if "/_" not in name(path)
    ]

    assert [] == missing


def _undocumented(path: Path) -> Iterator[str]:
    tree = ast.parse(text(path))
    if not (ast.get_docstring(tree) or "").strip():
        yield f"{name(path)} has no docstring"
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not node.name.startswith("_") and not ast.get_docstring(node):
            yield f"{at(path, node)} {node.name} has no docstring"


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{name(path)}:{number} {line.strip()}"
        for path in tracked(*CODE, ending=".py")
        for number, line in enumerate(text(path).splitlines(), 1)
        if UNFINISHED.search(line)
    ]

    assert [] == found


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{name(path)}:{number} {line.strip()[:120]}"
        for path in tracked()
        if path != Path(__file__).resolve() and path.suffix not in (".png", ".svg")
        for number, line in enumerate(text(path).splitlines(), 1)
        if OUTSIDE.search(line)
    ]

    assert [] == found


def test_no_test_sleeps_without_a_reason() -> None:
    found = [
        f"{name(path)}:{number} {line.strip()}"
        for path in tracked("tests", ending=".py")
        if path != Path(__file__).resolve()
        for number, line in enumerate(text(path).splitlines(), 1)
        if SLEEP.search(line) and not SLEEP_REASON.search(line)
    ]

    assert [] == found


def test_no_test_is_skipped_or_expected_to_fail_without_a_reason() -> None:
    marks = re.compile(
        r"pytest\.mark\.(skip|xfail)\b(?!if)(?!\(.*reason=)|mark\.flaky|assert True\b|unittest\.mock|\bMock\("
    )
    found = [
        f"{name(path)}:{number} {line.strip()}"
        for path in tracked("tests", ending=".py")
        if path != Path(__file__).resolve()
        for number, line in enumerate(text(path).splitlines(), 1)
        if marks.search(line)
    ]

    assert [] == found


@pytest.mark.parametrize("path", ["README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".ci/run", "compose.yaml"])
def test_the_files_a_newcomer_looks_for_are_there(path: str) -> None:
    assert (ROOT / path).is_file()


def test_the_lock_pins_every_line_with_a_hash_and_names_no_index() -> None:
    for lock in ("requirements.lock", "requirements-dev.lock"):
        lines = text(ROOT / lock).splitlines()
        pins = [line for line in lines if line and not line.startswith(("#", " "))]

        assert [] == [line for line in lines if "://" in line or "--index" in line or "--find" in line]
        assert [] == [line for line in pins if "==" not in line]
        assert text(ROOT / lock).count("--hash=sha256:") >= len(pins) > 10


def test_a_subclass_of_every_error_has_its_own_code() -> None:
    from redrive import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RedriveError)]
    codes = [kind.code for kind in kinds]

    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", code) for code in codes)
