"""What becomes of a rule over time: one alert for each label that is wrong, one notification for each turn.

    inactive ─met→ pending ─held→ firing ─over→ resolved ─over→ inactive
                      └─over→ inactive             └─met→ pending

`evaluate` is given a reading and a time and returns what stands now; the caller keeps that and gives it back. A figure
that could not be read changes nothing: a scrape that failed neither resolves an alert nor fires one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from redrive.core.alerts.figures import Reading
from redrive.core.alerts.rules import Rule, Severity
from redrive.core.units import UnixMs


class AlertState(StrEnum):
    """Where an alert stands. PENDING: wrong, not yet for long enough."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class AlertEvent(StrEnum):
    """What a reading says. MET: the conditions hold; HELD: they have held for long enough; OVER: they do not hold."""

    MET = "met"
    HELD = "held"
    OVER = "over"


_S, _E = AlertState, AlertEvent
ALERT_TRANSITIONS: Final[dict[AlertState, dict[AlertEvent, AlertState]]] = {
    _S.INACTIVE: {_E.MET: _S.PENDING, _E.HELD: _S.FIRING},
    _S.PENDING: {_E.HELD: _S.FIRING, _E.OVER: _S.INACTIVE},
    _S.FIRING: {_E.OVER: _S.RESOLVED},
    _S.RESOLVED: {_E.MET: _S.PENDING, _E.HELD: _S.FIRING, _E.OVER: _S.INACTIVE},
}
"""{state: {event: next state}}; what is not here leaves the state as it is."""

TOLD: Final = frozenset({AlertState.FIRING, AlertState.RESOLVED})
"""Entering one of these is a notification."""

Key: TypeAlias = tuple[str, str]
"""A rule's name and a label ("" where the rule has none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. `since`: when it entered its state; `met_since`: when the conditions began to hold; `value`: the last
    one that was read, while they hold.
    """

    rule: str
    label: str
    severity: Severity
    state: AlertState
    since: UnixMs
    met_since: UnixMs
    value: float

    @property
    def key(self) -> Key:
        """What tells it from every other."""
        return self.rule, self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Something to tell people now: an alert that fires, or is resolved. The texts are filled in."""

    alert: Alert
    at: UnixMs
    summary: str
    description: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What stands after one reading. `alerts` has no inactive ones; `unknown` names the rules nobody could judge."""

    alerts: Mapping[Key, Alert]
    notifications: tuple[Notification, ...]
    unknown: tuple[str, ...]

    @property
    def firing(self) -> tuple[Alert, ...]:
        """What fires, in the order of the rules."""
        return tuple(alert for alert in self.alerts.values() if alert.state is AlertState.FIRING)


NOTHING: Final = Evaluation(alerts={}, notifications=(), unknown=())
"""What stands before the first reading."""


def evaluate(rules: Iterable[Rule], reading: Reading, *, before: Evaluation = NOTHING, now: UnixMs) -> Evaluation:
    """What stands at `now`, given what stood before. Every change into FIRING or RESOLVED is one notification."""
    alerts: dict[Key, Alert] = {}
    notifications: list[Notification] = []
    unknown: list[str] = []
    for rule in rules:
        mine = {alert.label: alert for alert in before.alerts.values() if alert.rule == rule.name}
        found = _met(rule, reading)
        if found is None:
            unknown.append(rule.name)
            alerts.update({alert.key: alert for alert in mine.values()})
            continue
        for label in sorted({*mine, *found}):
            alert = _stepped(rule, mine.get(label) or _inactive(rule, label, now), value=found.get(label), now=now)
            if alert.state in TOLD and _is_entered(mine.get(label), alert):
                notifications.append(_notification(rule, alert, now))
            if alert.state is not AlertState.INACTIVE:
                alerts[alert.key] = alert
    return Evaluation(alerts=alerts, notifications=tuple(notifications), unknown=tuple(unknown))


def _met(rule: Rule, reading: Reading) -> dict[str, float] | None:
    """Label to the first figure's value where all conditions hold; None where a figure is unknown."""
    if any(condition.figure not in reading for condition in rule.when):
        return None
    first, *others = rule.when
    found = {label: value for label, value in reading[first.figure].items() if first.holds(value)}
    for condition in others:
        values = reading[condition.figure]
        found = {label: value for label, value in found.items() if condition.holds(values.get(label, 0.0))}
    return found


def _inactive(rule: Rule, label: str, now: UnixMs) -> Alert:
    return Alert(
        rule=rule.name,
        label=label,
        severity=rule.severity,
        state=AlertState.INACTIVE,
        since=now,
        met_since=now,
        value=0.0,
    )


def _stepped(rule: Rule, alert: Alert, *, value: float | None, now: UnixMs) -> Alert:
    """The alert after one reading; `value` None: the conditions do not hold."""
    if value is None:
        event = AlertEvent.OVER
    else:
        is_new = alert.state not in (AlertState.PENDING, AlertState.FIRING)
        alert = replace(alert, value=value, met_since=now if is_new else alert.met_since)
        event = AlertEvent.HELD if now - alert.met_since >= rule.for_ms else AlertEvent.MET
    state = ALERT_TRANSITIONS[alert.state].get(event, alert.state)
    return alert if state is alert.state else replace(alert, state=state, since=now)


def _is_entered(before: Alert | None, alert: Alert) -> bool:
    return before is None or before.state is not alert.state


def _notification(rule: Rule, alert: Alert, now: UnixMs) -> Notification:
    told = {
        name: rule.told(getattr(rule, name), value=alert.value, label=alert.label)
        for name in ("summary", "description", "action")
    }
    return Notification(alert=alert, at=now, **told)
