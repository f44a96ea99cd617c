"""The parts of `python -m bench.redis` run, and count what they claim to count."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import delays, idle
from bench.apart import Place, Run, Sides, run
from bench.compare import Rounds
from bench.measure import Contender
from bench.redis import CONTENDERS, NODE, REDRIVE, comparison, memory, part, peers
from bench.redis.runs import on_a_server, process_of, server
from tests.interop.node import modules_of
from tests.redis import OLD, install_of

MESSAGES = 200


@pytest.mark.parametrize("name", ["redrive", "redrive-plain", "redrive-callers"])
def test_a_run_of_redrive_is_measured_in_both_halves(name: str, tmp_path: Path) -> None:
    measured = on_a_server(install_of(OLD), CONTENDERS[name], folder=tmp_path, messages=MESSAGES, sides=Sides())

    assert MESSAGES == measured.messages
    assert measured.publish_per_s > 0
    assert measured.consume_per_s > 0


def test_a_run_of_nodes_bullmq_is_measured_in_both_halves(tmp_path: Path) -> None:
    modules_of(peers.NODE_MAJOR)

    measured = on_a_server(install_of(OLD), NODE, folder=tmp_path, messages=MESSAGES, sides=peers.node_sides())

    assert MESSAGES == measured.messages
    assert measured.consume_per_s > 0


def test_a_message_that_is_left_behind_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.apart.EMPTY_S", 0)
    with server(install_of(OLD)) as node:
        place = Place(
            url=node.url, pid=lambda: process_of(node), folder=tmp_path, left=lambda: {"bull:orders:active": 1}
        )

        with pytest.raises(RuntimeError, match="left behind"):
            run(REDRIVE, place, messages=MESSAGES, sides=Sides())


def test_the_single_numbers_are_measured_and_shown(tmp_path: Path) -> None:
    install = install_of(OLD)
    feed = delays.Feed(per_s=100, shortest_s=0.01, longest_s=0.05, floor_ms=50.0, share=0.0)

    jobs = memory.measure(install, tmp_path, jobs=MESSAGES)
    with server(install) as node:
        waiting = idle.measure(tmp_path, seconds=0.1, messages=3, url=node.url)
    with server(install) as node:
        late = delays.measure(node.url, tmp_path, messages=5, feed=feed)

    assert jobs.dead_kept_bytes > jobs.dead_bytes > 0
    assert waiting.wake_process_p50_ms > 0
    assert (10, 0) == (late.delays, late.early)


def test_every_contender_has_a_module_and_every_peer_an_exact_version() -> None:
    for contender in CONTENDERS.values():
        assert contender is NODE or find_spec(contender.module) is not None
    for file in (peers.SHARED, *peers.FILES.values()):
        packages = [line for line in (peers.HERE / file).read_text("utf-8").splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r"[\w.\[\]-]+==[\d.]+", package) for package in packages)


def test_ratios_are_of_the_same_round_and_said_with_their_spread() -> None:
    rounds: Rounds[Run] = Rounds(
        contenders=(REDRIVE, NODE),
        runs={"redrive": [_run(1.0), _run(2.0)], "bullmq-node": [_run(2.0), _run(2.0)]},
    )

    shown = part.text(
        {
            "broker": "Redis 7",
            "versions": {"bullmq (Node)": "5"},
            "rows": comparison.rows(rounds),
            "claims": comparison.claims(rounds),
        }
    )

    assert "1.50x (1.00-2.00)" in shown
    assert "bullmq (Node) 5" in shown


def _run(consume_s: float) -> Run:
    return Run(
        messages=100,
        publish_s=1.0,
        publish_cpu_s=0.1,
        consume_s=consume_s,
        consume_cpu_s=0.1,
        broker_cpu_s=0.1,
        rss_mb=1,
    )


def test_a_peer_that_cannot_be_installed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_BENCH_FOLDER", str(tmp_path))
    monkeypatch.setattr("bench.redis.peers.sys.executable", "/nowhere/python")
    told: list[str] = []

    with pytest.raises(peers.NotThere):
        peers.sides_of("arq", told.append)

    assert [] == list(tmp_path.iterdir())
    assert isinstance(CONTENDERS["arq"], Contender)
