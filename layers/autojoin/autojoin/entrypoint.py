"""From a Lambda event to a use case and back: find the model, parse, run, answer. The only place that logs failures."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from autojoin import errors
from autojoin.use_cases.parse import parse

if TYPE_CHECKING:
    from autojoin.ports import Ports

UseCase = Callable[[Any, Any], BaseModel]


class Handler:
    """A Lambda handler. `operations` are the models that it takes and the use case of each."""

    def __init__(self, operations: Mapping[type[BaseModel], UseCase], ports: Callable[[], Ports]) -> None:
        self.operations = operations
        self._ports = ports
        self._models = {getattr(model, "detail_type_name", model.__name__): model for model in operations}

    def __call__(self, event: dict[str, Any], context: object) -> dict[str, Any]:
        """Answer one event with the use case's result as JSON values.

        Raises InvalidInput for what fits no model, and whatever the use case raises: Step Functions reads the class name.
        """
        ports = self._ports()
        ports.telemetry.begin(*_keys(event))
        try:
            model = _model_of(event, self._models)
            result = self.operations[model](parse(model, event, f"event of {model.__name__}"), ports)
        except errors.AutojoinError as error:
            ports.telemetry.warning(str(error), error=type(error).__name__)
            raise
        finally:
            gc.enable()  # off while functions load: bootstrap
        return result.model_dump(mode="json")


def handler_for(operations: Mapping[type[BaseModel], UseCase], ports: Callable[[], Ports]) -> Handler:
    """A Lambda handler for these operations.

    An event's `operation` (from our machines) or `detail-type` (from EventBridge) names its model; `ports` is asked once per
    invocation, so nothing is built at import time.
    """
    return Handler(operations, ports)


def _model_of(event: object, models: Mapping[str, type[BaseModel]]) -> type[BaseModel]:
    named = event.get("operation") or event.get("detail-type") if isinstance(event, dict) else None
    if not isinstance(named, str) or named not in models:
        raise errors.InvalidInput(
            f"an event with operation or detail-type {named!r}",
            "one of " + ", ".join(sorted(models)),
            "nothing if someone else's rule sent it; otherwise deploy machines and functions together",
        )
    return models[named]


def _keys(event: object) -> tuple[dict[str, Any], str | None]:
    """The log keys of an invocation, and its correlation id: the execution's name."""
    if not isinstance(event, dict):
        return {}, None
    run, detail, request = _mapping(event, "run"), _mapping(event, "detail"), _mapping(event, "request")
    node = _mapping(run, "node")
    instance_id = node.get("instance_id") or request.get("instance_id") or detail.get("EC2InstanceId") or detail.get("instance-id")
    execution = run.get("name") or event.get("name") or detail.get("name")
    keys = {
        "step": event.get("operation") or event.get("detail-type"),
        "cluster": node.get("cluster"),
        "partition": node.get("partition"),
        "role": node.get("role"),
        "asg": node.get("group") or detail.get("AutoScalingGroupName") or request.get("group"),
        "instance_id": instance_id,
        "execution": execution,
    }
    return keys, execution


def _mapping(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}
