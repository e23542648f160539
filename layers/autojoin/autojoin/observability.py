"""Logs and metrics of a function: powertools' Logger and Metrics behind the Telemetry port."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import MetricUnit, single_metric

NAMESPACE = "Autojoin"


class PowertoolsTelemetry:
    """Keys are set once per invocation; the correlation id is the execution's name."""

    def __init__(self, boundary: str) -> None:
        self._boundary = boundary
        self._logger = Logger(service=f"autojoin-{boundary}")

    def begin(self, keys: dict[str, Any], correlation_id: str | None) -> None:
        """Forget the keys of the last invocation and set these."""
        self._logger.clear_state()
        self._logger.append_keys(**{k: v for k, v in keys.items() if v is not None})
        if correlation_id:
            self._logger.set_correlation_id(correlation_id)

    def info(self, message: str, **fields: object) -> None:
        """Log a line."""
        self._logger.info(message, extra=fields)

    def warning(self, message: str, **fields: object) -> None:
        """Log a line that an operator should read."""
        self._logger.warning(message, extra=fields)

    def count(self, metric: str, **dimensions: str) -> None:
        """One embedded-metric-format line: the metric in units of 1, by these dimensions."""
        with single_metric(name=metric, unit=MetricUnit.Count, value=1, namespace=NAMESPACE) as emitted:
            for name, value in dimensions.items():
                emitted.add_dimension(name=name, value=value)
