"""Limits that people set hold in workers that run, and in those that start later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import Delivery, Fair, Redrive
from redrive.core.policy.control import Control
from redrive.service import Service
from tests.runtime.stage import Told, working

PATIENCE_S = 60


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)  # sleep: the worker works in between


@pytest.mark.parametrize("when", ["before", "while it runs"])
async def test_a_worker_goes_by_the_limits_that_are_set(make_app: Any, when: str) -> None:
    app: Redrive = make_app()
    started: list[str] = []

    @app.consumer("mail", fair_by=Fair(batch=1), concurrency=1)
    async def send(mail: dict[str, Any], delivery: Delivery) -> None:
        started.append(str(delivery.tenant))

    async def changed() -> None:
        await Service(app).set_limits("mail", batch=4, rates={"slow": "1/h"}, actor="ann")

    told = Told(app)
    async with app:
        if when == "before":
            await changed()
        async with working(app):
            if when != "before":
                await changed()
            await until(lambda: told.count("queue.limits_changed") == 1)
            for n in range(20):
                await app.publish("mail", {"n": n}, tenant="slow")
            for n in range(20):
                await app.publish("mail", {"n": n}, tenant="quick")
            await until(lambda: started.count("quick") == 20)

    assert 1 >= started.count("slow"), "one in an hour"
    assert 4 == app.fair["mail"].batch


async def test_a_control_of_another_queue_changes_nothing(make_app: Any) -> None:
    app: Redrive = make_app()

    @app.consumer("mail", fair_by="tenant")
    async def send(mail: dict[str, Any]) -> None: ...

    async with app:
        assert app.backend.controls is not None
        await app.backend.controls.put(Control(queue="audit", batch=9))
        async with working(app):
            await app.publish("mail", {}, tenant="a")

    assert 3 == app.fair["mail"].batch
