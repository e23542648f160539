"""Every API call that reaches the region by HTTP is written to the journal, with its caller.

ministack has no record of its calls (its CloudTrail is off by default and knows neither the caller's role nor the
parameters). Made true: one `api_call` entry per request {service, operation, principal, status, error, source, detail}.
`detail` holds the parameters that identify what the call is about; bodies, secrets and task tokens are never written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from lab.region.region import Region

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

KEPT_BYTES = 262_144
"""Bytes of a request's body that are kept to find its parameters; an answer's are kept only to find its error code."""
KEPT_CHARS = 400

# fmt: off
IDENTIFYING = frozenset({
    "AllocationId", "AlarmName", "AutoScalingGroupName", "AutoScalingGroupNames", "CidrBlock", "CommandId",
    "Comment", "DesiredCapacity", "DestinationCidrBlock", "DocumentHash", "DocumentName", "DocumentVersion",
    "Filters", "FunctionName", "GroupId", "HostedZoneId", "Id", "InstanceId", "InstanceIds", "LaunchTemplateName",
    "LifecycleActionResult", "LifecycleActionToken", "LifecycleHookName", "LogGroupName", "MaxSize", "MetricName",
    "MinSize", "Name", "Names", "Namespace", "NetworkInterfaceId", "Path", "PolicyName", "QueueName", "QueueUrl",
    "RepositoryName", "ResourceId", "RoleArn", "RoleName", "RoleSessionName", "RuleName", "SecretId",
    "ShouldDecrementDesiredCapacity", "ShouldRespectGracePeriod", "SourceDestCheck", "StackName", "SubnetId",
    "TableName", "TargetGroupArn", "TopicArn", "VpcId", "executionArn", "logGroupName", "name", "stateMachineArn",
    "statusFilter",
})
# fmt: on
_LIST_MEMBER = re.compile(r"\.(?:member\.)?\d+$")
_CHANGE = re.compile(r"<Change>(.*?)</Change>", re.S)
_SERVICE_NAMES = {"monitoring": "cloudwatch", "elasticloadbalancing": "elbv2"}
_OPERATIONS = {("lambda", "InvokeFunction"): "Invoke", ("s3", "ListBucket"): "ListObjects"}


def journalled(region: Region, app: App) -> App:
    """The ASGI application `app` with its calls written to the region's journal and their caller known to overrides."""
    from lab.region import region as region_module

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/_ministack"):
            await app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        principal = principal_of(headers, query)
        body, answer, status = bytearray(), bytearray(), 0
        error_type = ""

        async def receive_and_keep() -> Message:
            message = await receive()
            if message["type"] == "http.request" and len(body) < KEPT_BYTES:
                body.extend(message.get("body", b""))
            return message

        async def send_and_keep(message: Message) -> None:
            nonlocal status, error_type
            if message["type"] == "http.response.start":
                status = message["status"]
                for key, value in message.get("headers", []):
                    if key.lower() == b"x-amzn-errortype":
                        error_type = value.decode("latin-1")
            elif status >= 400 and len(answer) < KEPT_CHARS * 10:
                answer.extend(message.get("body", b""))
            await send(message)

        token = region_module._principal.set(principal)
        try:
            await app(scope, receive_and_keep, send_and_keep)
        finally:
            region_module._principal.reset(token)
            call = _described(scope["method"], unquote(scope["path"]), headers, query, bytes(body))
            if call is not None:
                service, operation, detail = call
                region.journal.record(
                    "api_call", service=service, operation=operation, principal=principal, status=status,
                    error=error_code(bytes(answer), error_type) if status >= 400 else None, source="http",
                    detail=detail,
                )  # fmt: skip

    return wrapped


def principal_of(headers: dict[str, str], query: dict[str, list[str]]) -> str:
    """The caller by the access key of the request: "root", "anonymous" or an ARN ("unknown" if nobody's key)."""
    from ministack.core.iam_evaluator import is_root_access_key
    from ministack.core.router import extract_access_key_id
    from ministack.services import iam, sts

    key = extract_access_key_id(headers, query)
    if not key:
        return "anonymous"
    if is_root_access_key(key):
        return "root"
    session = sts._sessions.get(key)
    if session:
        return str(session.get("Arn", "unknown"))
    record = iam._access_keys.get(key)
    if record:
        user = iam._users.get(record.get("UserName", "")) or {}
        return str(user.get("Arn", "unknown"))
    return "unknown"


def error_code(answer: bytes, header: str = "") -> str:
    """The error's code as the SDKs read it, from the header or a JSON or XML body; "" if there is none."""
    if header:
        return header.split(":")[0].rpartition("#")[2]
    text = answer.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError:
            return ""
        code = data.get("__type") or data.get("code") or data.get("Code") or ""
        return str(code).rpartition("#")[2]
    found = re.search(r"<Code>([^<]+)</Code>", text)
    return found[1] if found else ""


def identifying(params: dict[str, Any]) -> dict[str, Any]:
    """Those of an operation's parameters that say what it is about, shortened."""
    detail: dict[str, Any] = {}
    for name, value in params.items():
        if name in IDENTIFYING and value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            detail[name] = value if len(text) <= KEPT_CHARS else text[:KEPT_CHARS]
    key = params.get("Key") or params.get("Item")
    if isinstance(key, dict) and "TableName" in params:
        detail["Key"] = _key(key)
    if "TransactItems" in params:
        detail["TransactItems"] = [_transact_item(item) for item in params["TransactItems"]]
    return detail


def _described(
    method: str, path: str, headers: dict[str, str], query: dict[str, list[str]], body: bytes
) -> tuple[str, str, dict[str, Any]] | None:
    from ministack import app
    from ministack.core.iam_actions import extract_iam_action
    from ministack.core.router import detect_service

    try:
        routing = app._routing_params(method, path, headers, body, query)
        service = detect_service(method, path, headers, routing)
        action = extract_iam_action(service, method, path, headers, body, routing) or f":{method} {path}"
        operation = action.partition(":")[2]
        operation = _OPERATIONS.get((service, operation), operation)
        detail = _detail(service, path, headers, body, routing)
    except Exception as error:
        return "unknown", f"{method} {path}", {"undescribed": repr(error)}
    return _SERVICE_NAMES.get(service, service), operation, detail


def _detail(service: str, path: str, headers: dict[str, str], body: bytes, routing: dict[str, list[str]]) -> dict[str, Any]:
    if service in ("lambda", "s3", "scheduler", "route53"):
        detail: dict[str, Any] = {"path": path[:KEPT_CHARS]}
        function = re.search(r"/functions/([^/]+)", path) if service == "lambda" else None
        if function:
            detail["FunctionName"] = function[1]
        if service == "route53" and b"<Change>" in body:
            detail["changes"] = [_change(x) for x in _CHANGE.findall(body.decode("utf-8", "replace"))]
        return detail
    if "x-amz-target" in headers or "json" in headers.get("content-type", ""):
        try:
            params = json.loads(body or b"{}")
        except ValueError:
            return {}
        return identifying(params) if isinstance(params, dict) else {}
    targets = _targets(routing) if service == "elasticloadbalancing" else []
    return identifying(_flat(routing)) | ({"targets": targets} if targets else {})


def _targets(routing: dict[str, list[str]]) -> list[str]:
    """`<id>:<port>` of the targets that a load balancing call names, the port of their group where it names none."""
    from ministack.services import alb

    given = {name: values[0] if isinstance(values, list) else values for name, values in routing.items()}
    default = (alb._tgs.get(given.get("TargetGroupArn", "")) or {}).get("Port", "")
    ids = {name: value for name, value in given.items() if re.fullmatch(r"Targets\.member\.\d+\.Id", name)}
    return [f"{value}:{given.get(name.removesuffix('Id') + 'Port', default)}" for name, value in ids.items()]


def _flat(routing: dict[str, list[str]]) -> dict[str, Any]:
    """Query parameters with list members (`X.1`, `X.member.1`) gathered under their name, boto3's plural included."""
    params: dict[str, Any] = {}
    for name, values in routing.items():
        base = _LIST_MEMBER.sub("", name)
        value = values[0] if isinstance(values, list) else values
        if base == name:
            params[name] = value
        else:
            base = "InstanceIds" if base == "InstanceId" else base
            params.setdefault(base, []).append(value)
    return params


def _plain(value: Any) -> Any:
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value


def _key(item: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in item.items() if name in ("pk", "sk")}


def _transact_item(item: dict[str, Any]) -> dict[str, Any]:
    operation, params = next(iter(item.items()))
    key = _key(params.get("Key") or params.get("Item") or {})
    return {"operation": operation, "TableName": params.get("TableName"), "Key": key}


def _change(xml: str) -> dict[str, Any]:
    def one(tag: str) -> str | None:
        found = re.search(rf"<{tag}>([^<]*)</{tag}>", xml)
        return found[1] if found else None

    return {
        "action": one("Action"), "name": one("Name"), "type": one("Type"), "set": one("SetIdentifier"),
        "ttl": one("TTL"), "values": re.findall(r"<Value>([^<]*)</Value>", xml),
    }  # fmt: skip
