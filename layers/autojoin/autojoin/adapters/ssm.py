"""Port Commands on Systems Manager."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from autojoin import errors
from autojoin.adapters.aws import translated
from autojoin.domain import budgets
from autojoin.domain.scripts import Invocation
from autojoin.records import Agent, Pin

NOT_TAKEN = frozenset({"InvalidInstanceId"})
NOT_VISIBLE_YET = frozenset({"InvocationDoesNotExist", "InvalidPluginName"})
ENDED = frozenset({"InvalidCommandId", "InvalidInstanceId", "DuplicateInstanceId"})


class SsmCommands:
    """Agents and Run Command, through our own documents only."""

    def __init__(self, ssm: Any, document_prefix: str, log_group: str = "") -> None:
        self._ssm, self._prefix, self._log_group = ssm, document_prefix, log_group

    def agents(self, instance_ids: Iterable[str]) -> Mapping[str, Agent]:
        """The agents that ever registered, by instance id."""
        filters = [{"Key": "InstanceIds", "Values": sorted(instance_ids)}]
        with translated("ssm:DescribeInstanceInformation"):
            pages = self._ssm.get_paginator("describe_instance_information").paginate(Filters=filters)
            found = [i for page in pages for i in page["InstanceInformationList"]]
        return {i["InstanceId"]: Agent(i["InstanceId"], i["PingStatus"], i.get("AgentVersion", "")) for i in found}

    def pin(self, document: str) -> Pin:
        """The default version of the document, and its hash."""
        with translated("ssm:DescribeDocument"):
            found = self._ssm.describe_document(Name=f"{self._prefix}-{document}")["Document"]
        return Pin(found["DocumentVersion"], found["Hash"])

    def send(self, document: str, instance_id: str, parameters: Mapping[str, str], comment: str, pin: Pin | None = None) -> str:
        """Send the document and return the command id. Raises InstanceGone if the instance is not taken."""
        output = {"CloudWatchLogGroupName": self._log_group, "CloudWatchOutputEnabled": True} if self._log_group else None
        pinned = {"DocumentVersion": pin.version, "DocumentHash": pin.sha256, "DocumentHashType": "Sha256"} if pin else {}
        try:
            with translated("ssm:SendCommand", unless=NOT_TAKEN):
                answer = self._ssm.send_command(
                    DocumentName=f"{self._prefix}-{document}",
                    InstanceIds=[instance_id],
                    Parameters={name: [value] for name, value in parameters.items()},
                    Comment=comment,
                    TimeoutSeconds=budgets.DELIVERY_TIMEOUT_S,
                    **pinned,
                    **({"CloudWatchOutputConfig": output} if output else {}),
                )
        except ClientError as refused:
            raise errors.InstanceGone(
                f"Systems Manager does not take {instance_id}: {refused.response['Error'].get('Message', '')}",
                "a running instance with an online agent and an instance profile",
                "look at the instance's state, profile and agent",
            ) from refused
        return str(answer["Command"]["CommandId"])

    def find(self, document: str, instance_id: str, comment: str) -> str | None:
        """The newest command of this document on the instance with exactly this comment, or None."""
        with translated("ssm:ListCommandInvocations"):
            pages = self._ssm.get_paginator("list_command_invocations").paginate(
                InstanceId=instance_id, Filters=[{"key": "DocumentName", "value": f"{self._prefix}-{document}"}]
            )
            mine = [i for page in pages for i in page["CommandInvocations"] if i.get("Comment") == comment]
        newest = max(mine, key=lambda i: i["RequestedDateTime"], default=None)
        return str(newest["CommandId"]) if newest else None

    def invocation(self, command_id: str, instance_id: str) -> Invocation | None:
        """How the command stands on the instance; None while it is not visible yet."""
        try:
            with translated("ssm:GetCommandInvocation", unless=NOT_VISIBLE_YET):
                found = self._ssm.get_command_invocation(CommandId=command_id, InstanceId=instance_id)
        except ClientError:
            return None
        return Invocation(
            command_id=command_id,
            instance_id=instance_id,
            document=found.get("DocumentName", ""),
            status=found["Status"],
            status_details=found.get("StatusDetails", ""),
            exit_code=found.get("ResponseCode", -1),
            stdout=found.get("StandardOutputContent", ""),
            stderr=found.get("StandardErrorContent", ""),
        )

    def cancel(self, command_id: str, instance_id: str) -> None:
        """Ask to cancel. Safe to repeat, and on commands that have ended."""
        try:
            with translated("ssm:CancelCommand", unless=ENDED):
                self._ssm.cancel_command(CommandId=command_id, InstanceIds=[instance_id])
        except ClientError:
            return
