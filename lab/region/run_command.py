"""Systems Manager documents and Run Command, on the fleet's agents.

ministack has no documents, no CancelCommand, no ListCommandInvocations; its SendCommand needs Docker or succeeds without
running anything, and DescribeInstanceInformation ignores filters. Made true: documents with versions and hashes, SendCommand to
the fleet's agents, which run the scripts as real processes, the reading APIs, cancelling, events. Parameters and
everything else of Systems Manager stay ministack's.

`documents()` is the store of the running region, for the template entry AWS::SSM::Document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lab.fleet import wire
from lab.fleet.commands import (
    CUT_STDERR,
    CUT_STDOUT,
    PLUGIN_CHARS,
    STDERR_CHARS,
    STDOUT_CHARS,
    Command,
    Commands,
    Invocation,
    Outcome,
    cut,
    iso,
)  # fmt: skip
from lab.fleet.documents import Document, DocumentStore, Version
from lab.fleet.wire import ApiError

if TYPE_CHECKING:
    from lab.region.region import Region

_store: DocumentStore | None = None
Handler = Callable[["Region", DocumentStore, Commands, Mapping[str, Any]], Mapping[str, Any]]


def documents() -> DocumentStore:
    """The documents of the running region."""
    if _store is None:
        raise RuntimeError("no region is running")
    return _store


def apply(region: Region) -> None:
    """Give the region its documents and commands, and put their API in front of ministack's."""
    global _store
    from ministack import app
    from ministack.core.responses import error_response_json

    store = _store = DocumentStore(region.account)

    def publish(detail_type: str, detail: dict[str, Any], resources: list[str]) -> None:
        fleet = region.fleet  # type: ignore[attr-defined]
        if fleet is not None:
            fleet.publish("aws.ssm", detail_type, detail, resources)

    commands = Commands(
        region.timers, store, publish, region.journal.record, account=region.account, region=region.name,  # type: ignore[attr-defined]
    )  # fmt: skip
    region.documents, region.commands = store, commands  # type: ignore[attr-defined]
    original = app.SERVICE_HANDLERS["ssm"]
    model = wire.service_model("ssm")

    async def handle(method: str, path: str, headers: Any, body: bytes, query: Any) -> Any:
        action = str(headers.get("x-amz-target", "")).split(".")[-1]
        if action not in HANDLERS:
            return await original(method, path, headers, body, query)
        try:
            given = json.loads(body or b"{}")
        except ValueError:
            return error_response_json("SerializationException", "Invalid JSON", 400)
        try:
            operation = model.operation_model(action)
            shape: Any = operation.input_shape
            unknown = sorted(set(given) - set(shape.members))
            missing = [name for name in shape.required_members if name not in given]
            if unknown or missing:
                raise ApiError("ValidationException", f"{action}: unknown {unknown}, missing {missing}")
            answer = HANDLERS[action](region, store, commands, given)
        except ApiError as error:
            return error_response_json(error.code, error.message, error.status)
        return 200, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(answer).encode()

    app.SERVICE_HANDLERS["ssm"] = handle


# -- documents -------------------------------------------------------------------------------------------------------------


def _create_document(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    document = store.create(
        given["Name"], given["Content"], type=given.get("DocumentType") or "Command", format=given.get("DocumentFormat") or "JSON",
        target_type=given.get("TargetType"), tags=given.get("Tags") or (), version_name=given.get("VersionName"),
    )  # fmt: skip
    return {"DocumentDescription": _described(document, document.version("1"))}


def _update_document(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = given.get("DocumentVersion")
    document = store.get(given["Name"])
    if asked not in (None, "$LATEST", str(document.latest)):
        raise ApiError("InvalidDocumentVersion", f"DocumentVersion {asked} is not the latest version")
    version = store.update(
        given["Name"], given["Content"], format=given.get("DocumentFormat") or "JSON", version_name=given.get("VersionName")
    )
    return {"DocumentDescription": _described(document, version)}


def _set_default(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    document = store.set_default(given["Name"], given["DocumentVersion"])
    return {"Description": {"Name": document.name, "DefaultVersion": str(document.default)}}


def _delete_document(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    store.delete(given["Name"])
    return {}


def _get_document(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    document = store.get(given["Name"])
    version = document.version(given.get("DocumentVersion"))
    wanted = given.get("DocumentFormat") or version.format
    content = version.content if wanted == version.format else json.dumps(version.parsed, indent=2)
    return {
        "Name": document.name,
        "CreatedDate": version.created_at,
        "DocumentVersion": str(version.number),
        "Status": "Active",
        "Content": content,
        "DocumentType": document.type,
        "DocumentFormat": wanted,
    }


def _describe_document(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    document = store.get(given["Name"])
    return {"Document": _described(document, document.version(given.get("DocumentVersion")))}


def _list_documents(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = store.all()
    filters = [(one["Key"], one["Values"]) for one in given.get("Filters") or []]
    filters += [(one["key"], [one["value"]]) for one in given.get("DocumentFilterList") or []]
    for key, values in filters:
        if key == "Owner":
            owners = {"Self": region.account, "Amazon": "Amazon", "Private": region.account}
            found = [document for document in found if document.owner in [owners.get(value, value) for value in values]]
        elif key in ("Name", "SearchKeyword"):
            found = [document for document in found if any(document.name.startswith(value) for value in values)]
        elif key == "DocumentType":
            found = [document for document in found if document.type in values]
        elif key.startswith("tag:"):
            found = [document for document in found if any(tag["Key"] == key[4:] and tag["Value"] in values for tag in document.tags)]
        else:
            raise ApiError("InvalidFilterKey", f"the lab does not know the filter key {key}")
    page, token = _page(given, found, 10)
    shown = [
        {
            "Name": document.name,
            "CreatedDate": document.versions[document.default].created_at,
            "Owner": document.owner,
            "PlatformTypes": ["Linux"],
            "DocumentVersion": str(document.default),
            "DocumentType": document.type,
            "SchemaVersion": "2.2",
            "DocumentFormat": document.versions[document.default].format,
            "Tags": document.tags,
        }
        for document in page
    ]
    return {"DocumentIdentifiers": shown, **token}


def _list_versions(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    document = store.get(given["Name"])
    page, token = _page(given, [document.versions[number] for number in sorted(document.versions, reverse=True)], 50)
    shown = [
        {
            "Name": document.name,
            "DocumentVersion": str(version.number),
            "CreatedDate": version.created_at,
            "IsDefaultVersion": version.number == document.default,
            "DocumentFormat": version.format,
            "Status": "Active",
        }
        for version in page
    ]
    return {"DocumentVersions": shown, **token}


def _described(document: Document, version: Version) -> dict[str, Any]:
    parameters = [
        {
            "Name": name,
            "Type": spec["type"],
            "Description": spec.get("description", ""),
            **({"DefaultValue": _text(spec["default"])} if "default" in spec else {}),
        }
        for name, spec in (version.parsed.get("parameters") or {}).items()
    ]
    return {
        "Hash": version.hash,
        "HashType": "Sha256",
        "Name": document.name,
        "Owner": document.owner,
        "CreatedDate": version.created_at,
        "Status": "Active",
        "DocumentVersion": str(version.number),
        "Description": version.parsed.get("description", ""),
        "Parameters": parameters,
        "PlatformTypes": ["Linux"],
        "DocumentType": document.type,
        "SchemaVersion": "2.2",
        "LatestVersion": str(document.latest),
        "DefaultVersion": str(document.default),
        "DocumentFormat": version.format,
        "Tags": document.tags,
        **({"TargetType": document.target_type} if document.target_type else {}),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# -- commands --------------------------------------------------------------------------------------------------------------


def _send_command(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"Command": _command(commands, commands.send(given))}


def _cancel_command(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    commands.cancel(given["CommandId"], given.get("InstanceIds") or ())
    return {}


def _get_invocation(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    invocation = commands.invocation(given["CommandId"], given["InstanceId"])
    command, plugin = invocation.command, given.get("PluginName")
    names = [step["name"] for step in command.version.parsed["mainSteps"]]
    if plugin and plugin not in names:
        raise ApiError("InvalidPluginName", f"The plugin name {plugin} is not valid.")
    outcomes = [outcome for outcome in invocation.outcomes if plugin in (None, outcome.step)] if invocation.over else []
    started, ended = invocation.started_at, invocation.ended_at
    result: dict[str, Any] = {
        "CommandId": command.command_id,
        "InstanceId": invocation.instance_id,
        "Comment": command.comment,
        "DocumentName": command.document.name,
        "DocumentVersion": str(command.version.number),
        "PluginName": plugin or (names[0] if len(names) == 1 else ""),
        "ResponseCode": invocation.exit_code,
        "ExecutionStartDateTime": iso(started) if started else "",
        "ExecutionElapsedTime": f"PT{ended - started:.3f}S" if started and ended else "",
        "ExecutionEndDateTime": iso(ended) if started and ended else "",
        "Status": invocation.status,
        "StatusDetails": invocation.details,
        "StandardOutputContent": cut("".join(one.stdout for one in outcomes), STDOUT_CHARS, CUT_STDOUT),
        "StandardOutputUrl": "",
        "StandardErrorContent": cut(_stderr(outcomes), STDERR_CHARS, CUT_STDERR),
        "StandardErrorUrl": "",
        "CloudWatchOutputConfig": {"CloudWatchLogGroupName": "", "CloudWatchOutputEnabled": False, **command.output},
    }
    return result


def _stderr(outcomes: list[Outcome]) -> str:
    """What a step wrote, and what the agent adds about a script that failed."""
    return "".join(one.stderr + (f"failed to run commands: exit status {one.exit_code}" if one.exit_code else "") for one in outcomes)


def _list_commands(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = [
        command
        for command in commands.visible()
        if given.get("CommandId") in (None, command.command_id)
        and (not given.get("InstanceId") or given["InstanceId"] in command.invocations)
    ]
    found = [command for command in found if _passes(given, command, command.status)]
    page, token = _page(given, found, 50)
    return {"Commands": [_command(commands, command) for command in page], **token}


def _list_invocations(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if given.get("CommandId"):
        commands.command(given["CommandId"])
    found = [
        invocation
        for command in commands.visible()
        for invocation in command.invocations.values()
        if given.get("CommandId") in (None, command.command_id)
        and given.get("InstanceId") in (None, invocation.instance_id)
        and _passes(given, command, invocation.status)
    ]
    page, token = _page(given, found, 50)
    return {"CommandInvocations": [_invocation(invocation, bool(given.get("Details"))) for invocation in page], **token}


def _both(outcome: Outcome) -> str:
    return outcome.stdout + (f"\n----------ERROR-------\n{outcome.stderr}" if outcome.stderr else "")


def _passes(given: Mapping[str, Any], command: Command, status: str) -> bool:
    for one in given.get("Filters") or []:
        key, value = one["key"], one["value"]
        if key == "DocumentName":
            good = command.document.name == value
        elif key == "Status":
            good = status == value
        elif key == "InvokedAfter":
            good = iso(command.requested_at) >= value
        elif key == "InvokedBefore":
            good = iso(command.requested_at) <= value
        elif key == "ExecutionStage":
            good = (value == "Complete") == (status in ("Success", "Failed", "TimedOut", "Cancelled"))
        else:
            raise ApiError("InvalidFilterKey", f"the lab does not know the filter key {key}")
        if not good:
            return False
    return True


def _command(commands: Commands, command: Command) -> dict[str, Any]:
    states = [invocation.status for invocation in command.invocations.values()]
    return {
        "CommandId": command.command_id,
        "DocumentName": command.document.name,
        "DocumentVersion": str(command.version.number),
        "Comment": command.comment,
        "ExpiresAfter": commands.expires_at(command),
        "Parameters": command.parameters,
        "InstanceIds": [] if command.targets else list(command.invocations),
        "Targets": command.targets,
        "RequestedDateTime": command.requested_at,
        "Status": command.status,
        "StatusDetails": command.details,
        "OutputS3BucketName": "",
        "OutputS3KeyPrefix": "",
        "MaxConcurrency": command.max_concurrency,
        "MaxErrors": command.max_errors,
        "TargetCount": len(states),
        "CompletedCount": sum(state in ("Success", "Failed", "TimedOut", "Cancelled") for state in states),
        "ErrorCount": command.errors,
        "DeliveryTimedOutCount": sum(one.details == "Delivery Timed Out" for one in command.invocations.values()),
        "ServiceRole": "",
        "CloudWatchOutputConfig": {"CloudWatchLogGroupName": "", "CloudWatchOutputEnabled": False, **command.output},
        "TimeoutSeconds": command.timeout_s,
    }


def _invocation(invocation: Invocation, details: bool) -> dict[str, Any]:
    command = invocation.command
    plugins = [
        {
            "Name": outcome.step,
            "Status": "TimedOut" if outcome.timed_out else "Failed" if outcome.exit_code else "Success",
            "StatusDetails": "Execution Timed Out" if outcome.timed_out else "Failed" if outcome.exit_code else "Success",
            "ResponseCode": outcome.exit_code,
            "ResponseStartDateTime": outcome.started_at,
            "ResponseFinishDateTime": outcome.ended_at,
            "Output": cut(_both(outcome), PLUGIN_CHARS, CUT_STDOUT),
            "StandardOutputUrl": "",
            "StandardErrorUrl": "",
        }
        for outcome in invocation.outcomes
    ]
    return {
        "CommandId": command.command_id,
        "InstanceId": invocation.instance_id,
        "InstanceName": "",
        "Comment": command.comment,
        "DocumentName": command.document.name,
        "DocumentVersion": str(command.version.number),
        "RequestedDateTime": command.requested_at,
        "Status": invocation.status,
        "StatusDetails": invocation.details,
        "StandardOutputUrl": "",
        "StandardErrorUrl": "",
        "CommandPlugins": plugins if details and invocation.over else [],
        "ServiceRole": "",
        "CloudWatchOutputConfig": {"CloudWatchLogGroupName": "", "CloudWatchOutputEnabled": False, **command.output},
    }


def _describe_information(region: Region, store: DocumentStore, commands: Commands, given: Mapping[str, Any]) -> Mapping[str, Any]:
    fleet = region.fleet  # type: ignore[attr-defined]
    found = [] if fleet is None else [one for one in list(fleet.instances.values()) if one.agent_registered and one.alive]
    shown = [
        {
            "InstanceId": one.instance_id,
            "PingStatus": "Online" if one.agent_online else "ConnectionLost",
            "LastPingDateTime": fleet.timers.now() if one.agent_online else one.agent_online_at,
            "AgentVersion": one.agent_version,
            "IsLatestVersion": True,
            "PlatformType": "Linux",
            "PlatformName": "Amazon Linux",
            "PlatformVersion": "2023",
            "ResourceType": "EC2Instance",
            "IPAddress": one.address,
            "ComputerName": f"ip-{one.address.replace('.', '-')}.ec2.internal",
            "SourceId": one.instance_id,
            "SourceType": "AWS::EC2::Instance",
        }
        for one in found
    ]
    filters = [(one["Key"], one["Values"]) for one in given.get("Filters") or []]
    filters += [(one["key"], one["valueSet"]) for one in given.get("InstanceInformationFilterList") or []]
    for key, values in filters:
        shown = [one for one in shown if _information_passes(fleet, one, key, values)]
    page, token = _page(given, shown, 10)
    return {"InstanceInformationList": page, **token}


def _information_passes(fleet: Any, one: Mapping[str, Any], key: str, values: list[str]) -> bool:
    direct = {
        "InstanceIds": "InstanceId",
        "PingStatus": "PingStatus",
        "AgentVersion": "AgentVersion",
        "PlatformTypes": "PlatformType",
        "ResourceType": "ResourceType",
    }
    if key in direct:
        return one[direct[key]] in values
    tags = fleet.instances[one["InstanceId"]].tags
    if key == "tag-key":
        return any(value in tags for value in values)
    if key.startswith("tag:"):
        return tags.get(key[4:]) in values
    raise ApiError("InvalidFilterKey", f"The specified key {key} is not valid.")


HANDLERS: dict[str, Handler] = {
    "CreateDocument": _create_document,
    "UpdateDocument": _update_document,
    "UpdateDocumentDefaultVersion": _set_default,
    "DeleteDocument": _delete_document,
    "GetDocument": _get_document,
    "DescribeDocument": _describe_document,
    "ListDocuments": _list_documents,
    "ListDocumentVersions": _list_versions,
    "SendCommand": _send_command,
    "CancelCommand": _cancel_command,
    "GetCommandInvocation": _get_invocation,
    "ListCommands": _list_commands,
    "ListCommandInvocations": _list_invocations,
    "DescribeInstanceInformation": _describe_information,
}


def _page(given: Mapping[str, Any], found: list[Any], most: int) -> tuple[list[Any], dict[str, str]]:
    token = str(given.get("NextToken") or "0")
    if not re.fullmatch(r"\d+", token):
        raise ApiError("InvalidNextToken", "The specified token is not valid.")
    first, most = int(token), int(given.get("MaxResults") or most)
    return found[first : first + most], {"NextToken": str(first + most)} if len(found) > first + most else {}
