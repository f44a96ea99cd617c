"""The rules as Prometheus' own rule file: what `promtool check rules` takes and an on-call person can act on.

The document is plain values. `as_yaml` writes them as YAML of which every string is a JSON string, which YAML takes as
it is: no value can break out of its place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from redrive.core.alerts.figures import FIGURES, PREFIX, Unit
from redrive.core.alerts.rules import DEFAULT_GROUPS, Condition, Group, Rule, rules_of
from redrive.core.units import Millis

Document: TypeAlias = dict[str, Any]

NAME_PREFIX: Final = "Redrive"
_VALUES: Final = {
    Unit.COUNT: '{{ printf "%.0f" $value }}',
    Unit.SHARE: "{{ humanizePercentage $value }}",
    Unit.SECONDS: "{{ humanizeDuration $value }}",
}


def rule_file(groups: tuple[Group, ...] = DEFAULT_GROUPS, *, prefix: str = PREFIX) -> Document:
    """The rule file with these groups. `prefix`: of the metrics' names, as the setting `metrics_prefix` has it."""
    return {
        "groups": [
            {"name": f"redrive-{group}", "rules": [_alert(rule, prefix) for rule in rules_of((group,))]}
            for group in Group
            if group in groups
        ]
    }


def _alert(rule: Rule, prefix: str) -> Document:
    found: Document = {"alert": f"{NAME_PREFIX}{rule.name}", "expr": expression(rule.when, prefix=prefix)}
    if rule.for_ms:
        found["for"] = _duration(rule.for_ms)
    texts = {"summary": rule.summary, "description": rule.description, "action": rule.action}
    return {
        **found,
        "labels": {"severity": str(rule.severity)},
        "annotations": {name: _templated(rule, text) for name, text in texts.items()},
    }


def expression(when: Sequence[Condition], *, prefix: str = PREFIX) -> str:
    """The conditions as PromQL; its value is the first one's figure."""
    parts = [
        f"({FIGURES[each.figure].expression.replace('$', prefix)}) {each.compared} {each.limit:g}" for each in when
    ]
    return parts[0] if len(parts) == 1 else " and ".join(f"({part})" for part in parts)


def _templated(rule: Rule, text: str) -> str:
    figure = FIGURES[rule.when[0].figure]
    found = text.replace("{value}", _VALUES[figure.unit])
    if figure.label is None:
        return found
    label = f"$labels.{figure.label}"
    word = f'\'{{{{ reReplaceAll "\'" "" {label} }}}}\''
    return found.replace("{label}", f"{{{{ {label} }}}}").replace("{word}", word)


def _duration(for_ms: Millis) -> str:
    return f"{for_ms // 1_000}s"


def as_yaml(document: Document) -> str:
    """A document of dictionaries, lists and strings as YAML."""
    return "".join(f"{line}\n" for line in _lines(document))


def _lines(value: Any) -> list[str]:
    match value:
        case dict():
            return [line for key, inner in value.items() for line in _entry(f"{key}:", inner)]
        case list():
            return [
                f"{'- ' if number == 0 else '  '}{line}" for item in value for number, line in enumerate(_lines(item))
            ]
        case _:
            return [json.dumps(value, ensure_ascii=False)]


def _entry(head: str, inner: Any) -> list[str]:
    if isinstance(inner, dict | list):
        return [head, *(f"  {line}" for line in _lines(inner))]
    return [f"{head} {_lines(inner)[0]}"]
