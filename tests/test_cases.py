"""CASES.md and the tests keep step: each case a test names is told there, each test it names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS / "CASES.md").read_text("utf-8")
NUMBER = re.compile(r"\b(RC|BO|DS|PF|ID|NM|TP|BR|RD|BQ|FA|WH|ML|MA|SD)-(\d\d)\b")
IN_A_NAME = re.compile(r"def test_(rc|bo|ds|pf|id|nm|tp|br|rd|bq|fa|wh|ml|ma|sd)(\d\d)_")
NAMED = re.compile(r"`(?P<file>[\w/]+\.py)`|`(?P<test>(?:test_|Test)\w+)`")


def sources() -> Iterator[tuple[Path, str]]:
    """Every test file but this one, with its text."""
    for path in sorted(TESTS.rglob("*.py")):
        if path != Path(__file__).resolve():
            yield path, path.read_text("utf-8")


def numbers_in(text: str) -> set[str]:
    return {f"{group.upper()}-{number}" for pattern in (NUMBER, IN_A_NAME) for group, number in pattern.findall(text)}


def named_tests() -> list[tuple[str, str]]:
    """(file, test) in the order of the page; a file holds for the tests after it."""
    found, file = [], ""
    for match in NAMED.finditer(PAGE):
        if match["file"] is not None:
            file = match["file"]
        else:
            found.append((file, match["test"]))
    return found


def defined_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_case_that_a_test_names_is_told_and_every_case_told_is_named_by_a_test() -> None:
    used = set().union(*(numbers_in(text) for _, text in sources()))

    assert sorted(used) == sorted(numbers_in(PAGE))


def test_every_test_the_page_names_exists() -> None:
    missing = [(file, test) for file, test in named_tests() if test not in defined_in(file)]

    assert [] == missing


def test_every_case_has_a_test_and_stands_in_order_once() -> None:
    entries = re.split(r"^- ", PAGE, flags=re.MULTILINE)[1:]
    numbers = [match[0] for match in re.findall(r"^- \*\*((\w\w)-\d\d)\*\*", PAGE, flags=re.MULTILINE)]

    assert [] == [entry for entry in entries if not NAMED.search(entry)]
    assert len(numbers) == len(set(numbers))
    for group in {number[:2] for number in numbers}:
        own = [number for number in numbers if number.startswith(group)]
        assert sorted(own) == own
