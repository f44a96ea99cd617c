"""Every value of the core is frozen, slotted and, but for a few that users write, keyword-only."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import redrive.core

MODULES = [name for _, name, _ in pkgutil.walk_packages(redrive.core.__path__, "redrive.core.")]
WRITTEN_BY_USERS = {"Retry", "Rule", "Fixed", "Exponential", "Tiers", "Decorrelated"}

PER_MESSAGE = {"Message", "Outgoing", "Lease", "Received", "Settle", "Taken", "End", "ClaimRef", "Acquired"}
"""Frozen for type checkers only: see `redrive.core.values`."""


def values() -> list[type]:
    found = (vars(importlib.import_module(name)).values() for name in MODULES)
    return [each for module in found for each in module if isinstance(each, type) and dataclasses.is_dataclass(each)]


def test_every_value_is_slotted_and_frozen_but_for_those_made_per_message_or_turn() -> None:
    loose = {each for each in values() if not each.__dataclass_params__.frozen or "__slots__" not in vars(each)}  # type: ignore[attr-defined]

    assert PER_MESSAGE == {each.__name__ for each in loose}
    assert all("__slots__" in vars(each) for each in loose)


def test_fields_are_given_by_name() -> None:
    positional = {
        each.__name__ for each in values() if not all(field.kw_only for field in dataclasses.fields(each) if field.init)
    }

    assert positional <= WRITTEN_BY_USERS
