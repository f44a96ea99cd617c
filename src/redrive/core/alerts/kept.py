"""What stood at the last look as plain values, for who looks again in another process: a timer, a new watch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from redrive.core.alerts.machine import Alert, AlertState, Evaluation
from redrive.core.alerts.rules import BY_NAME
from redrive.errors import ConfigurationError

Document: TypeAlias = dict[str, Any]

SCHEMA: Final = 1


def kept_document(evaluation: Evaluation) -> Document:
    """The alerts that are not inactive; `kept_from` gives them back."""
    alerts = [
        {
            "rule": alert.rule,
            "label": alert.label,
            "state": str(alert.state),
            "since": alert.since,
            "met_since": alert.met_since,
            "value": alert.value,
        }
        for alert in evaluation.alerts.values()
    ]
    return {"schema": SCHEMA, "alerts": alerts}


def kept_from(document: Mapping[str, Any]) -> Evaluation:
    """What stood then. A rule that is gone is left out. Raises `ConfigurationError` where it is something else."""
    try:
        if document["schema"] != SCHEMA:
            raise ConfigurationError(
                f"The alerts were kept in schema {document['schema']}; this redrive reads {SCHEMA}."
            )
        alerts = [_alert(entry) for entry in document["alerts"] if entry["rule"] in BY_NAME]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"What should be kept alerts is something else: {error!r:.120}.") from error
    return Evaluation(alerts={alert.key: alert for alert in alerts}, notifications=(), unknown=())


def _alert(entry: Mapping[str, Any]) -> Alert:
    return Alert(
        rule=str(entry["rule"]),
        label=str(entry["label"]),
        severity=BY_NAME[entry["rule"]].severity,
        state=AlertState(entry["state"]),
        since=int(entry["since"]),
        met_since=int(entry["met_since"]),
        value=float(entry["value"]),
    )
