"""The region: AWS on one machine, ministack with what it lacks made true by one module each."""

from __future__ import annotations

OVERRIDES: tuple[str, ...] = (
    "cloud_formation",
    "functions",
    "event_delivery",
    "instances",
    "auto_scaling",
    "load_balancing",
    "parameters",
    "run_command",
    "record_sets",
    "state_machines",
    "authorisation",
)
"""Modules of this package in the order in which Region.start() calls their `apply(region)`; a later one may wrap an earlier."""
