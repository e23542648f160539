"""Ports of the command: those of the functions, with the operator's credentials, on the table and documents of a stack."""

from __future__ import annotations

from functools import cached_property

import boto3
from botocore.exceptions import BotoCoreError

from autojoin import errors
from autojoin.adapters.aws import client
from autojoin.adapters.operator import AwsOperator, stack_outputs
from autojoin.bootstrap import AwsPorts
from autojoin.config import Settings
from autojoin.ports import Operator


class CommandPorts(AwsPorts):
    """Port set of the command. Credentials and region are as boto3 finds them."""

    @cached_property
    def operator(self) -> Operator:
        """Groups, tags, hooks, declarations and the zone."""
        return AwsOperator(client)


def ports_of(stack: str) -> CommandPorts:
    """Ports on what the stack made. Raises InvalidInput without credentials or region, or if there is no such stack."""
    _require_credentials()
    outputs = stack_outputs(client("cloudformation"), stack)
    variables = {
        "AUTOJOIN_BOUNDARY": "cli",
        "AUTOJOIN_TABLE": outputs["TableName"],
        "AUTOJOIN_DOCUMENT_PREFIX": stack,
        "AUTOJOIN_COMMAND_LOG_GROUP": outputs.get("CommandLogGroup", ""),
    }
    return CommandPorts(Settings(variables))


def _require_credentials() -> None:
    try:
        session = boto3.Session()
        missing = "no region" if session.region_name is None else "no credentials" if session.get_credentials() is None else ""
    except BotoCoreError as error:
        missing = str(error)
    if missing:
        raise errors.InvalidInput(
            f"boto3: {missing}",
            "credentials and a region where boto3 looks for them",
            "set AWS_PROFILE or AWS_DEFAULT_REGION, or run aws configure",
        )
