"""Prometheus metrics: counts events, shows them in the text format.

One call per batch on the hot path, a dictionary entry and a bisect per delivery; nothing else happens before a
scrape. `METRICS` is the table that docs and dashboards are made from. No message id, error text, worker or host name
ever becomes a label, and those that strangers choose (tenant, reason and error codes) are bounded by `labels.py`.

The counts are those of this process. Several worker processes are added up by whoever serves the scrape
(`Tally.merge`); a process that ended stays in the sum, so a counter never falls.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from redrive.core.alerts import figures
from redrive.core.letters.ages import AGE_BOUNDS_MS
from redrive.runtime.events import ENDS, Event, Events
from redrive.runtime.labels import OTHER, BoundedNames, StickyTop, TopCounter
from redrive.runtime.windows import LastHour

PREFIX: Final = figures.PREFIX
TENANTS_SHOWN: Final = 20
QUEUES_SHOWN: Final = 200
CODES_SHOWN: Final = 50
ATTEMPTS_SHOWN: Final = 10
SUCCESS_WINDOW_MINUTES: Final = 60

DURATION_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
DELAY_BUCKETS_S: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0)
AGE_BUCKETS_S: Final = tuple(bound / 1_000 for bound in AGE_BOUNDS_MS)

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]
Family: TypeAlias = "CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricType:
    """One row of the table. `name` on the wire is `redrive_` + the key (+ `_total` for a counter). `is_read`: not
    counted but read when somebody scrapes, from the store or the server; so it is the same whoever is asked.
    """

    kind: Kind
    text: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    is_read: bool = False


METRICS: Final[Mapping[str, MetricType]] = {
    "messages_published": MetricType(kind="counter", text="Messages accepted by the broker.", labels=("queue",)),
    "deliveries_taken": MetricType(kind="counter", text="Deliveries handed to this worker.", labels=("queue",)),
    "deliveries": MetricType(
        kind="counter",
        text="Deliveries by how they ended (processed, retried, dead_lettered, requeued, duplicate, lease_lost, …).",
        labels=("queue", "outcome"),
    ),
    "deliveries_in_flight": MetricType(kind="gauge", text="Deliveries taken and not ended.", labels=("queue",)),
    "messages_last_hour": MetricType(
        kind="gauge",
        text="Messages that came to an end in the last hour: processed or dead_lettered.",
        labels=("outcome",),
    ),
    "handler_duration_seconds": MetricType(
        kind="histogram", text="Time in the handler.", labels=("queue",), buckets=DURATION_BUCKETS_S
    ),
    "retry_attempts": MetricType(
        kind="counter", text="Retries scheduled, by the attempt that failed.", labels=("attempt",)
    ),
    "retry_backoff_delay_seconds": MetricType(
        kind="histogram", text="Delays of scheduled retries.", buckets=DELAY_BUCKETS_S
    ),
    "retry_success_rate": MetricType(
        kind="gauge", text="Share of second and later attempts that succeeded in the last hour.", labels=("attempt",)
    ),
    "failures": MetricType(kind="counter", text="Failed attempts by error code.", labels=("queue", "code")),
    "handler_timeouts": MetricType(kind="counter", text="Handlers that ran over their limit.", labels=("queue",)),
    "lost_starts": MetricType(
        kind="counter", text="Starts that never ended: the worker died or lost its lease.", labels=("queue",)
    ),
    "lease_lost": MetricType(
        kind="counter", text="Results refused because the lease had passed on.", labels=("queue",)
    ),
    "tenant_jobs_processed": MetricType(
        kind="gauge", text="Deliveries processed by tenant; beyond the busiest, all are other.", labels=("company",)
    ),
    "tenant_current_priority": MetricType(
        kind="gauge",
        text="Of a fair queue: 5 for who is served in turn, down to 1 for who is rounds behind, unless Fair says other "
        "numbers; other: the lowest.",
        labels=("company",),
        is_read=True,
    ),
    "tenant_consecutive_batch": MetricType(
        kind="gauge", text="Of a fair queue: starts in a row up to now.", labels=("company",), is_read=True
    ),
    "tenant_rounds_without_processing": MetricType(
        kind="gauge",
        text="Of a fair queue: rounds in which the others were served and this tenant was not; other: the most.",
        labels=("company",),
        is_read=True,
    ),
    "breaker_state": MetricType(kind="gauge", text="0 closed, 1 half open, 2 open.", labels=("queue",)),
    "consumer_paused": MetricType(
        kind="gauge", text="1 while consuming is paused because broker or store is away.", labels=("queue",)
    ),
    "queue_paused": MetricType(
        kind="gauge", text="1 while a person has paused the queue, as its workers know it.", labels=("queue",)
    ),
    "worker_processes_died": MetricType(kind="counter", text="Worker processes that died and were replaced."),
    "dead_letters": MetricType(kind="counter", text="Messages dead-lettered.", labels=("queue", "reason")),
    "dlq_entries": MetricType(kind="counter", text="Messages dead-lettered, all queues."),
    "dlq_size": MetricType(kind="gauge", text="Dead letters a person has still to decide about.", is_read=True),
    "dlq_oldest_age_seconds": MetricType(
        kind="gauge", text="Age of the oldest of them; 0 where there is none.", is_read=True
    ),
    "dlq_age_seconds": MetricType(
        kind="histogram",
        text="How old the open dead letters are now: what lies there, not what has passed; do not take its rate.",
        buckets=AGE_BUCKETS_S,
        is_read=True,
    ),
    "dlq_by_queue": MetricType(
        kind="gauge", text="Open dead letters by consumer queue.", labels=("queue",), is_read=True
    ),
    "dlq_by_error_code": MetricType(
        kind="gauge", text="Open dead letters by reason code.", labels=("code",), is_read=True
    ),
    "dlq_by_company": MetricType(
        kind="gauge",
        text="Open dead letters by tenant; beyond those with the most, all are other.",
        labels=("company",),
        is_read=True,
    ),
    "letters_collected": MetricType(
        kind="counter", text="Dead letters of others taken into the store.", labels=("queue",)
    ),
    "collector_paused": MetricType(
        kind="gauge",
        text="1 while the collector of a queue waits for the broker, the store or the queue.",
        labels=("queue",),
    ),
    "letters_redriven": MetricType(kind="counter", text="Dead letters sent back."),
    "letters_archived": MetricType(
        kind="counter", text="Dead letters over the maximum, written into the archive and removed."
    ),
    "letters_archive_failures": MetricType(kind="counter", text="Tries to write the archive that failed."),
    "letters_archived_last_hour": MetricType(
        kind="gauge", text="The same in the last hour: letters archived, and tries that failed.", labels=("outcome",)
    ),
    "letters_reviewed": MetricType(kind="counter", text="Review states given to letters by people.", labels=("state",)),
    "records_pruned": MetricType(kind="counter", text="Expired records removed.", labels=("what",)),
    "queue_depth": MetricType(
        kind="gauge", text="Messages in a queue: ready, scheduled, leased.", labels=("queue", "state"), is_read=True
    ),
    "queue_oldest_ready_age_seconds": MetricType(
        kind="gauge", text="How long the oldest ready message waits.", labels=("queue",), is_read=True
    ),
    "redis_memory_used_bytes": MetricType(kind="gauge", text="Memory the Redis server uses.", is_read=True),
    "redis_memory_max_bytes": MetricType(
        kind="gauge", text="Memory it may use (maxmemory); 0 where it has no limit.", is_read=True
    ),
    "redis_oom_errors": MetricType(
        kind="counter", text="Commands it has refused for want of memory (errorstat_OOM).", is_read=True
    ),
    "ingest_requests": MetricType(
        kind="counter",
        text="Webhooks by answer: 202, duplicate, or the status of the refusal.",
        labels=("source", "status"),
    ),
    "scrape_errors": MetricType(
        kind="counter", text="Scrapes that could not read depths; the last known ones were shown."
    ),
}

_WORST: Final = frozenset({"breaker_state", "consumer_paused", "queue_paused"})
_KEPT: Final = frozenset(name for name, metric in METRICS.items() if metric.kind != "gauge" and not metric.is_read) | {
    "tenant_jobs_processed"
}
_LAST_HOUR: Final = {
    "messages_last_hour": ("processed", "dead_lettered"),
    "letters_archived_last_hour": ("archived", "failed"),
}
_BREAKER: Final = {"closed": 0, "half_open": 1, "open": 2}


@dataclass(slots=True)
class Tally:
    """Numbers by metric and label values. A histogram is its bucket counts, then +Inf, then the sum in seconds; a
    share is [part, whole].
    """

    numbers: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Labels, list[float]]] = field(default_factory=dict)
    shares: dict[str, dict[Labels, list[float]]] = field(default_factory=dict)

    def add(self, name: str, labels: Labels = (), count: float = 1) -> None:
        """Add to a counter (or move a gauge by `count`)."""
        series = self.numbers.get(name)
        if series is None:
            series = self.numbers[name] = {}
        series[labels] = series.get(labels, 0) + count

    def put(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self.numbers.setdefault(name, {})[labels] = value

    def observe(self, name: str, labels: Labels, seconds: Iterable[float]) -> None:
        """Add observations to a histogram."""
        bounds = METRICS[name].buckets
        series = self.histograms.setdefault(name, {})
        counts = series.get(labels)
        if counts is None:
            counts = series[labels] = [0.0] * (len(bounds) + 2)
        for value in seconds:
            counts[bisect_left(bounds, value)] += 1
            counts[-1] += value

    def merge(self, other: Tally) -> None:
        """Add another process's numbers to these. Of states (breaker, paused) the worst one counts."""
        for name, series in other.numbers.items():
            for labels, value in series.items():
                if name in _WORST:
                    self.put(name, labels, max(value, self.numbers.get(name, {}).get(labels, 0)))
                else:
                    self.add(name, labels, value)
        for mine, theirs in ((self.histograms, other.histograms), (self.shares, other.shares)):
            for name, lists in theirs.items():
                _add_lists(mine.setdefault(name, {}), lists)

    def counters(self) -> Tally:
        """What stays true of a process that has ended: its counters and histograms, none of its states."""
        numbers = {name: series for name, series in self.numbers.items() if name in _KEPT}
        histograms = {name: series for name, series in self.histograms.items() if name in _KEPT}
        return Tally(numbers=numbers, histograms=histograms)


def _add_lists(mine: dict[Labels, list[float]], theirs: Mapping[Labels, list[float]]) -> None:
    for labels, values in theirs.items():
        known = mine.get(labels)
        mine[labels] = list(values) if known is None else [a + b for a, b in zip(known, values, strict=True)]


class LabelBounds:
    """Keeps a sum over many processes as bounded as one of them: each brings tenants and codes of its own, and a fleet
    that restarts brings new ones for ever. One for each sum, for as long as it is added to. Not thread-safe.
    """

    def __init__(self) -> None:
        codes = BoundedNames(CODES_SHOWN)
        self._names = {"queue": BoundedNames(QUEUES_SHOWN), "source": BoundedNames(CODES_SHOWN)}
        self._names |= {"code": codes, "reason": codes}
        self._tenants = StickyTop(TENANTS_SHOWN)

    def bound(self, tally: Tally) -> Tally:
        """The same numbers under bounded labels; what is too much goes to `other`, so every sum stays."""
        self._tenants.choose({labels[0]: n for labels, n in tally.numbers.get("tenant_jobs_processed", {}).items()})
        found = Tally()
        for part in ("numbers", "histograms", "shares"):
            for name, series in getattr(tally, part).items():
                renamed = {labels: self._bounded(name, labels) for labels in series}
                for old, new in renamed.items():
                    found.merge(Tally(**{part: {name: {new: series[old]}}}))
        return found

    def _bounded(self, name: str, labels: Labels) -> Labels:
        metric = METRICS.get(name)
        if metric is None or metric.is_read:
            return labels
        return tuple(self._label(kind, text) for kind, text in zip(metric.labels, labels, strict=True))

    def _label(self, kind: str, text: str) -> str:
        if kind == "company":
            return self._tenants(text)
        names = self._names.get(kind)
        return text if names is None or text == OTHER else names(text)


class Metrics:
    """Counts the events of one process. `subscribe` it, then `render` at a scrape. Thread-safe.

    `others`: the tallies of other processes, added up with this one's at a scrape. `prefix`: of every name.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        others: Callable[[], Sequence[Tally]] = tuple,
        prefix: str = PREFIX,
    ) -> None:
        self._monotonic = monotonic
        self._others = others
        self._bounds = LabelBounds()
        self._lock = threading.Lock()
        self._tally = Tally()
        self._tenants = TopCounter(TENANTS_SHOWN)
        self._queue = BoundedNames(QUEUES_SHOWN)
        self._source = BoundedNames(CODES_SHOWN)
        self._code = BoundedNames(CODES_SHOWN)
        self._successes = SuccessRate(SUCCESS_WINDOW_MINUTES)
        self._ended = LastHour()
        self._on: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "worker.started": self._started,
            "message.published": self._published,
            "deliveries.taken": self._taken,
            "deliveries.processed": self._processed,
            "delivery.retry_scheduled": self._retried,
            "delivery.dead_lettered": self._dead_lettered,
            "delivery.requeued": self._ended_as("requeued"),
            "delivery.duplicate": self._ended_as("duplicate"),
            "delivery.lease_lost": self._lease_lost,
            "delivery.unsettled": self._ended_as("unsettled"),
            "delivery.interrupted": self._count("lost_starts", "queue"),
            "delivery.timed_out": self._count("handler_timeouts", "queue"),
            "breaker.changed": self._breaker,
            "consumer.paused": lambda fields: self._tally.put("consumer_paused", (self._queue(fields["queue"]),), 1),
            "consumer.resumed": lambda fields: self._tally.put("consumer_paused", (self._queue(fields["queue"]),), 0),
            "collector.paused": lambda fields: self._tally.put("collector_paused", (self._queue(fields["queue"]),), 1),
            "collector.resumed": lambda fields: self._tally.put("collector_paused", (self._queue(fields["queue"]),), 0),
            "letters.collected": self._collected,
            "queue.paused": lambda fields: self._tally.put("queue_paused", (self._queue(fields["queue"]),), 1),
            "queue.resumed": lambda fields: self._tally.put("queue_paused", (self._queue(fields["queue"]),), 0),
            "process.exited": lambda _fields: self._tally.add("worker_processes_died"),
            "ingest.accepted": self._accepted,
            "ingest.refused": self._refused,
            "redrive.sent": lambda fields: self._tally.add("letters_redriven", (), fields["count"]),
            "letter.reviewed": lambda fields: self._tally.add("letters_reviewed", (str(fields["to"]),)),
            "letters.archived": self._archived,
            "letters.not_archived": self._not_archived,
            "letters.removed": lambda fields: self._tally.add("records_pruned", ("letters",), fields["count"]),
            "letters.expired": lambda fields: self._tally.add("records_pruned", ("letters",), fields["count"]),
            "letters.erased": lambda fields: self._tally.add("records_pruned", ("letters",), fields["letters"]),
            "upkeep.pruned": lambda fields: self._tally.add("records_pruned", (str(fields["what"]),), fields["count"]),
        }
        self.collectors = CollectorRegistry(auto_describe=False)
        self.collectors.register(_Families(self._sum, prefix))

    def subscribe(self, events: Events) -> None:
        """Count everything that happens from now on."""
        events.subscribe(self)

    def __call__(self, event: Event) -> None:
        """Count one event."""
        handler = self._on.get(event.name)
        if handler is not None:
            with self._lock:
                handler(event.fields)

    def set_gauges(self, gauges: Mapping[str, Mapping[Labels, float]]) -> None:
        """Replace whole gauges, e.g. queue depths read at a scrape; a queue that is gone disappears."""
        with self._lock:
            for name, series in gauges.items():
                self._tally.numbers[name] = dict(series)

    def set_histogram(self, name: str, counts: Sequence[float]) -> None:
        """Replace a histogram that was read: its bucket counts, the one above the last bound, and the sum."""
        with self._lock:
            self._tally.histograms[name] = {(): list(counts)}

    def scrape_failed(self) -> None:
        """Depths could not be read; the last ones stay."""
        with self._lock:
            self._tally.add("scrape_errors")

    def tally(self) -> Tally:
        """A copy of all numbers now, tenants and the success rate included."""
        with self._lock:
            copy = Tally()
            copy.merge(self._tally)
            copy.numbers["tenant_jobs_processed"] = {(name,): count for name, count in self._tenants.items()}
            copy.shares["retry_success_rate"] = self._successes.sums(self._minute())
            ended = self._ended.sums(self._minute())
            for name, outcomes in _LAST_HOUR.items():
                copy.numbers[name] = {(outcome,): ended.get(outcome, 0) for outcome in outcomes}
            return copy

    def _sum(self) -> Tally:
        everything, others = self.tally(), self._others()
        if not others:
            return everything
        for other in others:
            everything.merge(other)
        return self._bounds.bound(everything)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.collectors)

    # ------------------------------------------------------------------------------------------ one per event

    def _count(self, name: str, label: str) -> Callable[[Mapping[str, Any]], None]:
        return lambda fields: self._tally.add(name, (self._queue(fields[label]),))

    def _ended_as(self, outcome: str) -> Callable[[Mapping[str, Any]], None]:
        return lambda fields: self._end(self._queue(fields["queue"]), outcome)

    def _end(self, queue: str, outcome: str, count: int = 1) -> None:
        self._tally.add("deliveries", (queue, outcome), count)
        self._tally.add("deliveries_in_flight", (queue,), -count)

    def _started(self, fields: Mapping[str, Any]) -> None:
        """Every series of a queue is there from the start: what a counter counts before its first scrape Prometheus
        takes for its beginning, and no `increase()` shows it.
        """
        for queue in map(self._queue, fields["queues"]):
            self._tally.add("deliveries_taken", (queue,), 0)
            for outcome in ENDS.values():
                self._end(queue, outcome, 0)

    def _published(self, fields: Mapping[str, Any]) -> None:
        self._tally.add("messages_published", (self._queue(fields["queue"]),), fields["count"])

    def _taken(self, fields: Mapping[str, Any]) -> None:
        queue = self._queue(fields["queue"])
        self._tally.add("deliveries_taken", (queue,), fields["count"])
        self._tally.add("deliveries_in_flight", (queue,), fields["count"])

    def _processed(self, fields: Mapping[str, Any]) -> None:
        queue, durations = self._queue(fields["queue"]), fields["durations_ms"]
        self._end(queue, ENDS["deliveries.processed"], len(durations))
        self._tally.observe("handler_duration_seconds", (queue,), [ms / 1_000 for ms in durations])
        for tenant, count in _counted(fields.get("tenants") or [None] * len(durations)):
            self._tenants.add(tenant, count)
        minute = self._minute()
        self._ended.add("processed", minute, len(durations))
        attempts = fields["attempts"]
        if max(attempts, default=0) > 1:
            for attempt, count in Counter(attempts).items():
                self._successes.add(attempt, minute, succeeded=True, count=count)

    def _retried(self, fields: Mapping[str, Any]) -> None:
        queue, attempt = self._queue(fields["queue"]), fields["attempt"]
        self._end(queue, "retried")
        self._failed(queue, fields)
        self._tally.add("retry_attempts", (attempt_label(attempt),))
        self._tally.observe("retry_backoff_delay_seconds", (), [(fields.get("delay_ms") or 0) / 1_000])

    def _dead_lettered(self, fields: Mapping[str, Any]) -> None:
        queue = self._queue(fields["queue"])
        self._end(queue, "dead_lettered")
        self._failed(queue, fields)
        self._tally.add("dead_letters", (queue, self._code(fields["reason_code"])))
        self._tally.add("dlq_entries")
        self._ended.add("dead_lettered", self._minute(), 1)

    def _failed(self, queue: str, fields: Mapping[str, Any]) -> None:
        """A handler that failed; one that never ran (expired, malformed, worker lost) has no duration."""
        self._tally.add("failures", (queue, self._code(fields.get("error_code"))))
        duration_ms = fields.get("duration_ms")
        if duration_ms is not None:
            self._tally.observe("handler_duration_seconds", (queue,), [duration_ms / 1_000])
            self._successes.add(fields["attempt"], self._minute(), succeeded=False)

    def _lease_lost(self, fields: Mapping[str, Any]) -> None:
        queue = self._queue(fields["queue"])
        self._end(queue, "lease_lost")
        self._tally.add("lease_lost", (queue,))

    def _collected(self, fields: Mapping[str, Any]) -> None:
        self._tally.add("letters_collected", (self._queue(fields["queue"]),), fields["new"])

    def _archived(self, fields: Mapping[str, Any]) -> None:
        self._tally.add("letters_archived", (), fields["count"])
        self._ended.add("archived", self._minute(), fields["count"])

    def _not_archived(self, _fields: Mapping[str, Any]) -> None:
        self._tally.add("letters_archive_failures")
        self._ended.add("failed", self._minute(), 1)

    def _breaker(self, fields: Mapping[str, Any]) -> None:
        self._tally.put("breaker_state", (self._queue(fields["queue"]),), _BREAKER.get(str(fields["state"]), 2))

    def _accepted(self, fields: Mapping[str, Any]) -> None:
        status = "duplicate" if fields.get("duplicate") else "202"
        self._tally.add("ingest_requests", (self._source(fields["source"]), status))

    def _refused(self, fields: Mapping[str, Any]) -> None:
        """An unknown source is a stranger's text, so a 404 is counted under none."""
        status = str(fields["status"])
        source = self._source(None if status == "404" else fields["source"])
        self._tally.add("ingest_requests", (source, status))

    def _minute(self) -> int:
        return int(self._monotonic() // 60)


def _counted(names: Sequence[str | None]) -> Iterable[tuple[str | None, int]]:
    """Each with how often it occurs; for one alone a dictionary is dearer than all the rest."""
    return [(names[0], 1)] if len(names) == 1 else Counter(names).items()


class SuccessRate:
    """Share of attempts that succeeded within a sliding window, minute by minute. Attempt 1 is no retry."""

    def __init__(self, window_minutes: int) -> None:
        self._window = window_minutes
        self._minutes: dict[str, deque[list[int]]] = {}

    def add(self, attempt: int, minute: int, *, succeeded: bool, count: int = 1) -> None:
        """Count ended attempts."""
        if attempt < 2:  # noqa: PLR2004 - the first retry is attempt 2
            return
        minutes = self._minutes.setdefault(attempt_label(attempt), deque(maxlen=self._window))
        if not minutes or minutes[-1][0] != minute:
            minutes.append([minute, 0, 0])
        minutes[-1][1] += count if succeeded else 0
        minutes[-1][2] += count

    def sums(self, minute: int) -> dict[Labels, list[float]]:
        """Attempt label to [succeeded, ended] within the window up to `minute`."""
        return {
            (label,): [sum(entry[i] for entry in minutes if entry[0] > minute - self._window) for i in (1, 2)]
            for label, minutes in self._minutes.items()
        }


def attempt_label(attempt: int) -> str:
    """`1` to `10`, then `11+`."""
    return str(attempt) if attempt <= ATTEMPTS_SHOWN else f"{ATTEMPTS_SHOWN + 1}+"


class _Families(Collector):
    """Turns a tally into what prometheus-client writes out; metrics without a value yet are left out."""

    def __init__(self, tally: Callable[[], Tally], prefix: str) -> None:
        self._tally = tally
        self._prefix = prefix

    def collect(self) -> Iterator[Family]:
        tally = self._tally()
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                yield _histogram(self._prefix + name, metric, tally.histograms.get(name, {}))
            else:
                yield _number(self._prefix + name, metric, _values(name, tally))


def _values(name: str, tally: Tally) -> Mapping[Labels, float]:
    if name in tally.shares:
        return {labels: part / whole for labels, (part, whole) in tally.shares[name].items() if whole}
    return tally.numbers.get(name, {})


def _number(name: str, metric: MetricType, series: Mapping[Labels, float]) -> Family:
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(name, metric.text, labels=metric.labels)
    if not metric.labels and not series and not metric.is_read:
        series = {(): 0.0}
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _histogram(name: str, metric: MetricType, series: Mapping[Labels, Sequence[float]]) -> Family:
    family = HistogramMetricFamily(name, metric.text, labels=metric.labels)
    if not metric.labels and not series and not metric.is_read:
        series = {(): [0.0] * (len(metric.buckets) + 2)}
    for labels, counts in series.items():
        family.add_metric(labels, buckets=_cumulative(metric.buckets, counts), sum_value=counts[-1])
    return family


def _cumulative(bounds: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0.0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts[:-1], strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
