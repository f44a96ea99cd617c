"""Alerts: rules as data, figures by name, and what becomes of an alert over time; for Prometheus and without it."""

from redrive.core.alerts.figures import FIGURES, Figure, Reading, Unit, written
from redrive.core.alerts.kept import kept_document, kept_from
from redrive.core.alerts.machine import (
    ALERT_TRANSITIONS,
    NOTHING,
    Alert,
    AlertEvent,
    AlertState,
    Evaluation,
    Notification,
    evaluate,
)
from redrive.core.alerts.prometheus import as_yaml, rule_file
from redrive.core.alerts.rules import BY_NAME, DEFAULT_GROUPS, RULES, Condition, Group, Is, Rule, Severity, rules_of

__all__ = [
    "ALERT_TRANSITIONS",
    "BY_NAME",
    "DEFAULT_GROUPS",
    "FIGURES",
    "NOTHING",
    "RULES",
    "Alert",
    "AlertEvent",
    "AlertState",
    "Condition",
    "Evaluation",
    "Figure",
    "Group",
    "Is",
    "Notification",
    "Reading",
    "Rule",
    "Severity",
    "Unit",
    "as_yaml",
    "evaluate",
    "kept_document",
    "kept_from",
    "rule_file",
    "rules_of",
    "written",
]
