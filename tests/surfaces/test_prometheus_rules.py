"""The Prometheus rules: promtool accepts them, and its own rule tests fire each at the times we say."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from redrive.core.alerts import RULES, Group, as_yaml, rule_file
from redrive.core.letters.ages import AGE_BOUNDS_MS
from redrive.runtime.events import Events
from redrive.runtime.metrics import METRICS, Metrics
from redrive.testing.servers.promtool import installed_promtool
from tests.surfaces.conftest import Cli

JOB = 'job="mail"'
MISSING = "promtool is not on this machine. Run (as root, on Debian): python -m redrive.testing.servers"


@pytest.fixture(scope="module")
def promtool() -> Path:
    found = installed_promtool()
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(MISSING)
    pytest.skip(MISSING)


def ran(promtool: Path, *arguments: str, folder: Path) -> str:
    done = subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("prefix", ["redrive_", ""])
def test_promtool_accepts_the_rules(cli: Cli, promtool: Path, tmp_path: Path, prefix: str) -> None:
    groups = [word for group in Group for word in ("--group", str(group))]

    printed = cli("metrics", *groups, "--prefix", prefix)
    (tmp_path / "rules.yml").write_text(printed.out)

    assert 0 == printed.code
    assert f"SUCCESS: {len(RULES)} rules found" in ran(promtool, "check", "rules", "rules.yml", folder=tmp_path)


def test_the_rules_as_json_are_a_rule_file_too(cli: Cli, promtool: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(cli("metrics", "--json").out)

    assert "SUCCESS" in ran(promtool, "check", "rules", "rules.json", folder=tmp_path)


def test_promtool_has_no_complaint_about_the_metrics(promtool: Path) -> None:
    """Names, units, help texts, and the text format itself."""
    events, metrics = Events(), Metrics()
    metrics.subscribe(events)
    events.emit("worker.started", worker="w", queues=["q"], pid=1)
    events.emit("deliveries.processed", queue="q", durations_ms=[1], attempts=[2], tenants=["a"])
    events.emit("delivery.dead_lettered", queue="q", attempt=2, error_code="TIMEOUT", reason_code="X", duration_ms=5)
    events.emit("delivery.retry_scheduled", queue="q", attempt=2, error_code="X", delay_ms=1_000, duration_ms=5)
    metrics.set_gauges({name: {(): 1} for name in ("dlq_size", "redis_memory_used_bytes", "redis_oom_errors")})
    metrics.set_histogram("dlq_age_seconds", [1, *[0] * len(AGE_BOUNDS_MS), 3])

    done = subprocess.run(
        [promtool, "check", "metrics"], input=metrics.render(), capture_output=True, check=False, timeout=120
    )

    assert (0, b"") == (done.returncode, done.stdout + done.stderr)


def series(name: str, values: str, labels: str = "") -> dict[str, str]:
    return {"series": f"{name}{{{JOB}{',' if labels else ''}{labels}}}", "values": values}


def fires(at: str, name: str, **labels: str) -> dict[str, Any]:
    """What promtool is told to expect: this alert and no other of its name."""
    return {"eval_time": at, "alertname": f"Redrive{name}", "exp_alerts": [_expected(name, labels)]}


def silent(at: str, name: str) -> dict[str, Any]:
    return {"eval_time": at, "alertname": f"Redrive{name}", "exp_alerts": []}


def _expected(name: str, labels: dict[str, str]) -> dict[str, Any]:
    texts = TEXTS[name]
    (rule,) = (rule for rule in RULES if rule.name == name)
    shown = {"severity": str(rule.severity), "job": "mail", **labels}
    return {
        "exp_labels": shown,
        "exp_annotations": {"summary": texts[0], "description": rule.description, "action": texts[1] or rule.action},
    }


TEXTS = {
    "DeadLettersMany": ("101 dead letters wait for somebody to decide", ""),
    "DeadLetterRateHigh": ("3.333% of what was sent in the last hour was dead-lettered", ""),
    "TenantDeadLetters": (
        "Tenant o'brien has 51 dead letters",
        "Tell that tenant what failed and why: redrive dlq stats --tenant 'obrien'",
    ),
    "DeadLettersArchived": ("600 dead letters over the maximum were archived in the last hour", ""),
    "ArchiveFails": ("The archive of dead letters could not be written 60 times in the last hour", ""),
    "RedisMemoryHigh": ("Redis uses 92% of its memory", ""),
    "RedisMemoryCritical": ("Redis uses 92% of its memory", ""),
    "RedisOutOfMemory": ("Redis refused 3 commands for want of memory", ""),
    "NewDeadLetters": ("1 new dead letters in the last five minutes", ""),
    "DeadLettersOld": ("The oldest dead letter has waited 1h 0m 0s", ""),
}

ENDED = "redrive_deliveries_total"
DELIVERIES = 'queue="email:send",outcome='

CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, Any]]]] = {
    "many letters": (
        [series("redrive_dlq_size", "100 101 100")],
        [silent("0m", "DeadLettersMany"), fires("1m", "DeadLettersMany"), silent("2m", "DeadLettersMany")],
    ),
    "a rate": (
        [
            series(ENDED, "0+58x180", f'{DELIVERIES}"processed"'),
            series(ENDED, "0+2x180", f'{DELIVERIES}"dead_lettered"'),
            series(ENDED, "0+100x180", f'{DELIVERIES}"retried"'),
        ],
        [fires("2h", "DeadLetterRateHigh")],
    ),
    "a rate at its limit": (
        [
            series(ENDED, "0+98x180", f'{DELIVERIES}"processed"'),
            series(ENDED, "0+2x180", f'{DELIVERIES}"dead_lettered"'),
        ],
        [silent("2h", "DeadLetterRateHigh")],
    ),
    "a rate over few messages": (
        [
            series(ENDED, "0x60 20x120", f'{DELIVERIES}"processed"'),
            series(ENDED, "0x60 20x120", f'{DELIVERIES}"dead_lettered"'),
        ],
        [silent("90m", "DeadLetterRateHigh")],
    ),
    "nothing at all": (
        [
            series(ENDED, "5x180", f'{DELIVERIES}"processed"'),
            series(ENDED, "5x180", f'{DELIVERIES}"dead_lettered"'),
            series("redrive_dlq_entries_total", "5x180"),
        ],
        [silent("2h", "DeadLetterRateHigh"), silent("2h", "NewDeadLetters")],
    ),
    "one tenant": (
        [
            series("redrive_dlq_by_company", "50 51", 'company="o\'brien"'),
            series("redrive_dlq_by_company", "80 80", 'company="other"'),
            series("redrive_dlq_by_company", "80 80", 'company="-"'),
        ],
        [silent("0m", "TenantDeadLetters"), fires("1m", "TenantDeadLetters", company="o'brien")],
    ),
    "letters over the maximum": (
        [
            series("redrive_letters_archived_total", "0+10x180"),
            series("redrive_letters_archive_failures_total", "0x180"),
        ],
        [silent("0m", "DeadLettersArchived"), fires("2h", "DeadLettersArchived"), silent("2h", "ArchiveFails")],
    ),
    "an archive that cannot be written": (
        [
            series("redrive_letters_archived_total", "5x180"),
            series("redrive_letters_archive_failures_total", "0+1x180"),
        ],
        [silent("2h", "DeadLettersArchived"), fires("2h", "ArchiveFails")],
    ),
    "memory": (
        [series("redrive_redis_memory_used_bytes", "80 92"), series("redrive_redis_memory_max_bytes", "100 100")],
        [
            silent("0m", "RedisMemoryHigh"),
            silent("0m", "RedisMemoryCritical"),
            fires("1m", "RedisMemoryHigh"),
            fires("1m", "RedisMemoryCritical"),
        ],
    ),
    "memory without a limit": (
        [series("redrive_redis_memory_used_bytes", "80 92"), series("redrive_redis_memory_max_bytes", "0 0")],
        [silent("1m", "RedisMemoryHigh"), silent("1m", "RedisMemoryCritical")],
    ),
    "refused commands": (
        [series("redrive_redis_oom_errors_total", "7x20 10x40")],
        [silent("19m", "RedisOutOfMemory"), silent("45m", "RedisOutOfMemory")],
    ),
    "new and old letters (case MA-03)": (
        [
            series("redrive_dlq_entries_total", "0 1x9 51x110 52x10"),
            series("redrive_dlq_oldest_age_seconds", "0+60x120 0x10"),
        ],
        [
            silent("0m", "NewDeadLetters"),
            silent("8m", "NewDeadLetters"),
            silent("20m", "NewDeadLetters"),
            silent("59m", "DeadLettersOld"),
            fires("60m", "DeadLettersOld"),
            silent("121m", "DeadLettersOld"),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_promtools_own_test_of_each_rule(promtool: Path, tmp_path: Path, name: str) -> None:
    """Case MA-03, with Prometheus."""
    given, expected = CASES[name]
    (tmp_path / "rules.yml").write_text(as_yaml(rule_file(tuple(Group))))
    test = {"interval": "1m", "input_series": given, "alert_rule_test": expected}
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.json").write_text(json.dumps(document))

    assert "SUCCESS" in ran(promtool, "test", "rules", "tests.json", folder=tmp_path)


def test_every_metric_that_a_rule_names_exists() -> None:
    known = {f"redrive_{name}{'_total' if metric.kind == 'counter' else ''}" for name, metric in METRICS.items()}
    named = {
        word
        for group in rule_file(tuple(Group))["groups"]
        for rule in group["rules"]
        for word in rule["expr"].replace("(", " ").replace("{", " ").replace("[", " ").replace(")", " ").split()
        if word.startswith("redrive_")
    }

    assert set() == named - known
    assert len(named) >= 7
