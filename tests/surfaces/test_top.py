"""`redrive top`: stays on a terminal until it is ended, prints once into a pipe, and fits into 80 columns."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from redrive.cli.top import shown
from redrive.core.policy.control import Pause
from redrive.runtime.app import Redrive
from redrive.service import Overview, QueueView, Service
from redrive.testing.samples import letter, message
from tests.surfaces.conftest import COMMAND, PATIENCE_S, Cli, clean_environment, put

APP = ("--app", "shop:app")


async def test_into_a_pipe_it_looks_once(cli: Cli, shop: Redrive) -> None:
    await put(shop, 3, message=message(tenant="acme"))
    await Service(shop).pause_queue("orders", actor="ann")

    text, as_json = cli("top", *APP), cli("top", *APP, "--once", "--json")

    assert (0, 0) == (text.code, as_json.code)
    assert "dead letters 3" in text.out
    assert "paused" in text.out
    assert "acme" in text.out
    assert "\x1b" not in text.out
    found = as_json.json
    assert (3, 3, {"acme": 3}) == (found["open_letters"], found["last_hour"], found["by_tenant"])
    assert ["orders", "refunds"] == [queue["queue"] for queue in found["queues"]]
    assert 3 == found["groups"][0]["waiting"]


@pytest.mark.parametrize("every", ["100ms", "soon", "-1s"])
async def test_too_often_is_refused(cli: Cli, shop: Redrive, every: str) -> None:
    assert 2 == cli("top", *APP, "--every", every).code


async def look_at(shop: Redrive) -> Overview:
    hostile = message("m-h", tenant="\x1b[31mred[bold]" + "t" * 300)
    await shop.backend.letters.put([letter("dl_h", message=hostile, group_title="\x1b]0;x\x07" + "g" * 500)])
    return await Service(shop).overview(top=5)


def queue(name: str, **changes: int) -> QueueView:
    given = {"ready": 0, "scheduled": 0, "leased": 0, "dead": 0, **changes}
    return QueueView(queue=name, oldest_ready_at=None, is_consumed=True, **given)


async def test_it_fits_into_80_columns_and_obeys_no_strangers_text(shop: Redrive) -> None:
    look = await look_at(shop)
    wide = queue("q" * 300, ready=1_234_567, scheduled=7_654_321, leased=99_999, dead=10_000_000)
    before = replace(look, queues=(queue("q" * 300, ready=1_000_000),), at=look.at - 2_000)
    look = replace(look, queues=(replace(wide, paused=Pause(actor="ann")), *look.queues))
    out = io.StringIO()

    Console(file=out, width=80, markup=False, highlight=False, emoji=False).print(shown(look, before, rows=5))

    lines = out.getvalue().splitlines()
    assert 80 >= max(len(line) for line in lines)
    assert "\x1b" not in out.getvalue()
    assert any("1234567" in line and "+117284" in line and "paused" in line for line in lines), out.getvalue()


async def test_many_queues_are_counted_and_not_listed(shop: Redrive) -> None:
    look = replace(await Service(shop).overview(), queues=tuple(queue(f"q{n:03}", ready=n) for n in range(200)))
    out = io.StringIO()

    Console(file=out, width=80).print(shown(look, None, rows=5))

    assert "and 190 more" in out.getvalue()
    assert "q199" in out.getvalue()


@pytest.mark.parametrize("end", [b"q", b"\x03"])
async def test_on_a_terminal_it_stays_until_it_is_ended(shop: Redrive, here: Path, end: bytes) -> None:
    await put(shop, 2)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [*COMMAND, "top", *APP, "--every", "500ms"],
        cwd=here,
        env={**clean_environment(TERM="xterm"), "COLUMNS": "80"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        seen = b""
        while seen.count(b"dead letters 2") < 2:
            seen += os.read(ours, 65_536)
        if end == b"\x03":
            process.send_signal(signal.SIGINT)
        else:
            os.write(ours, end)
        code = process.wait(PATIENCE_S)
        after = termios.tcgetattr(theirs)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)

    assert 0 == code
    assert before == after, "the terminal is as it was"
