"""Every example in a docstring of the core is run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import redrive.core

MODULES = [name for _, name, _ in pkgutil.walk_packages(redrive.core.__path__, "redrive.core.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_say_what_happens(name: str) -> None:
    assert 0 == doctest.testmod(importlib.import_module(name)).failed
