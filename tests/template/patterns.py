"""Event patterns of EventBridge, as far as our rules use them: exact values, and anything-but of exact values.

Source: EventBridge User Guide, "Comparison operators": all fields of a pattern must match, any value of a list may; a field
that an event lacks matches nothing, anything-but included; of an array in the event any element may match.
"""

from __future__ import annotations

from typing import Any


def matches(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether the event matches. Raises ValueError for an operator that is none of ours."""
    return all(_field_matches(wanted, event, name) for name, wanted in pattern.items())


def _field_matches(wanted: Any, event: dict[str, Any], name: str) -> bool:
    if isinstance(wanted, dict):
        inner = event.get(name)
        return isinstance(inner, dict) and matches(wanted, inner)
    if not isinstance(wanted, list) or not wanted:
        raise ValueError(f"{name}: a pattern's field is an object or a list of values")
    if name not in event:
        return False
    found = event[name] if isinstance(event[name], list) else [event[name]]
    return any(_value_matches(rule, value) for rule in wanted for value in found)


def _value_matches(rule: Any, value: Any) -> bool:
    if not isinstance(rule, dict):
        return bool(rule == value and isinstance(rule, bool) == isinstance(value, bool))
    if rule.keys() != {"anything-but"}:
        raise ValueError(f"an operator that no rule of ours uses: {rule}")
    refused = rule["anything-but"] if isinstance(rule["anything-but"], list) else [rule["anything-but"]]
    if not all(isinstance(r, str | int | float) for r in refused):
        raise ValueError(f"anything-but of something else than values: {rule}")
    return value not in refused
