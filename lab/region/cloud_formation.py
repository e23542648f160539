"""CloudFormation knows the types and properties that our templates use.

ministack differs: a stack with an AWS::SSM::Document, AWS::EC2::SecurityGroupIngress or AWS::Logs::QueryDefinition is
refused whole; a condition does not know `!Join`; state machine definitions in YAML are stored as text; a hosted zone's
VPCs are dropped (it becomes public); `!Ref` of an instance profile is its ARN and of a secret its name (AWS: the other
way round); `!GetAtt Vpc.CidrBlock` fails the stack; a function's ReservedConcurrentExecutions, DeadLetterConfig and
VpcConfig are dropped, and its role is never looked at.

Made true: all of these. Documents go through the SSM API of the region, so the store behind it rules. The handler of
AWS::AutoScaling::AutoScalingGroup lives in auto_scaling.py, that of target groups in load_balancing.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import yaml

from lab.region import authorisation

if TYPE_CHECKING:
    from lab.region.region import Region

Props = dict[str, Any]
Created = tuple[str, Props]
Entry = dict[str, Any]


class ResourceFailed(ValueError):
    """A resource could not be made; CloudFormation shows the message as the status reason and rolls back."""


def apply(region: Region) -> None:
    """Put our types into ministack's table, and wrap those that it gets wrong."""
    from ministack.services.cloudformation import changesets, engine, handlers, provisioners, stacks

    table: dict[str, Entry] = provisioners._RESOURCE_HANDLERS
    table["AWS::SSM::Document"] = _entry(_document_create, _document_update, _document_delete)
    table["AWS::EC2::SecurityGroupIngress"] = _entry(_ingress_create, _ingress_update, _ingress_delete)
    table["AWS::Logs::QueryDefinition"] = _entry(_query_create, _query_update, lambda physical_id, props: None)
    for kind, wrap in {
        "AWS::EC2::VPC": _vpc,
        "AWS::IAM::InstanceProfile": _instance_profile,
        "AWS::Lambda::Function": _function,
        "AWS::Route53::HostedZone": _hosted_zone,
        "AWS::SecretsManager::Secret": _secret,
    }.items():
        table[kind] = wrap(dict(table[kind]))
    definition_of: Callable[[Props], str] = provisioners._sfn_definition

    def definition(props: Props) -> str:
        text = definition_of(props)
        try:
            json.loads(text)
        except ValueError:
            return json.dumps(yaml.safe_load(text))
        return text

    provisioners._sfn_definition = definition
    evaluate = engine._evaluate_conditions

    def evaluate_conditions(template: Props, params: Props) -> dict[str, bool]:
        conditions = _joined(template.get("Conditions", {}), params)
        result: dict[str, bool] = evaluate({**template, "Conditions": conditions}, params)
        return result

    for module in (changesets, engine, handlers, stacks):
        module._evaluate_conditions = evaluate_conditions


def _joined(node: Any, params: Props) -> Any:
    """A condition with each `Fn::Join` of parameters and texts in it joined; a list parameter's value is one text with commas."""

    def value(item: Any) -> str:
        name = item.get("Ref") if isinstance(item, dict) else None
        return str(params[name]["Value"]) if name in params else str(item)

    if isinstance(node, list):
        return [_joined(item, params) for item in node]
    if not isinstance(node, dict):
        return node
    if "Fn::Join" in node:
        separator, items = node["Fn::Join"]
        parts = [value(item) for item in items] if isinstance(items, list) else [one.strip() for one in value(items).split(",")]
        return separator.join(parts)
    return {key: _joined(item, params) for key, item in node.items()}


def _entry(
    create: Callable[[str, Props, str], Created],
    update: Callable[[str, Props, Props, str, str | None], Created],
    delete: Callable[[str, Props], None],
) -> Entry:
    return {"create": create, "update": update, "update_with_logical_id": True, "delete": delete}


def _updated(entry: Entry, physical_id: str, old: Props, new: Props, stack: str, logical_id: str | None) -> Created:
    update = entry.get("update")
    if update is None:
        result: Created = entry["create"](logical_id or physical_id, new, stack)
    elif entry.get("update_with_logical_id"):
        result = update(physical_id, old, new, stack, logical_id)
    else:
        result = update(physical_id, old, new, stack)
    return result


def _wrapped(
    entry: Entry,
    finish: Callable[[str, Props, Props], Created],
    *,
    inner_id: Callable[[str], str] = lambda physical_id: physical_id,
    check: Callable[[Props], None] = lambda props: None,
) -> Entry:
    """An entry whose results pass `finish(physical_id, attributes, props)` and whose ids are told as `inner_id`."""
    original = dict(entry)

    def create(logical_id: str, props: Props, stack: str) -> Created:
        check(props)
        physical_id, attributes = original["create"](logical_id, props, stack)
        return finish(physical_id, attributes or {}, props)

    def update(physical_id: str, old: Props, new: Props, stack: str, logical_id: str | None = None) -> Created:
        check(new)
        changed, attributes = _updated(original, inner_id(physical_id), old, new, stack, logical_id)
        return finish(changed, attributes or {}, new)

    def delete(physical_id: str, props: Props) -> None:
        original["delete"](inner_id(physical_id), props)

    return {**entry, "create": create, "update": update, "update_with_logical_id": True, "delete": delete}


# -- SSM documents ---------------------------------------------------------------------------------------------------
def _document_create(logical_id: str, props: Props, stack: str) -> Created:
    name = props.get("Name") or f"{stack}-{logical_id}-{uuid.uuid4().hex[:12]}"
    call: Props = {
        "Name": name,
        "Content": _document_content(props),
        "DocumentType": props.get("DocumentType", "Command"),
        "DocumentFormat": props.get("DocumentFormat", "JSON"),
    }
    for optional in ("TargetType", "VersionName", "Tags", "Requires", "Attachments"):
        if props.get(optional):
            call[optional] = props[optional]
    _ssm("CreateDocument", call)
    return name, {}


def _document_update(physical_id: str, old: Props, new: Props, stack: str, logical_id: str | None = None) -> Created:
    immutable = ("Name", "DocumentType", "Requires", "Attachments")
    replaces = any(old.get(k) != new.get(k) for k in immutable)
    content = ("Content", "DocumentFormat", "VersionName", "TargetType")
    changed = any(old.get(k) != new.get(k) for k in content)
    if not replaces and changed and new.get("UpdateMethod") == "NewVersion":
        call = {"Name": physical_id, "Content": _document_content(new), "DocumentVersion": "$LATEST"}
        call["DocumentFormat"] = new.get("DocumentFormat", "JSON")
        if new.get("VersionName"):
            call["VersionName"] = new["VersionName"]
        answer = _ssm("UpdateDocument", call, ignore="DuplicateDocumentContent")
        version = (answer.get("DocumentDescription") or {}).get("DocumentVersion")
        if version:
            _ssm("UpdateDocumentDefaultVersion", {"Name": physical_id, "DocumentVersion": version})
        return physical_id, {}
    if replaces or changed:
        if new.get("Name") and old.get("Name") == new["Name"]:
            raise ResourceFailed(
                f"CloudFormation cannot update a stack when a custom-named resource requires replacing. Rename {physical_id} "
                "and update the stack again."
            )
        created = _document_create(logical_id or physical_id, new, stack)
        _document_delete(physical_id, old)
        return created
    return physical_id, {}


def _document_delete(physical_id: str, props: Props) -> None:
    del props
    _ssm("DeleteDocument", {"Name": physical_id}, ignore="InvalidDocument")


def _document_content(props: Props) -> str:
    content = props["Content"]
    if isinstance(content, str):
        return content
    if props.get("DocumentFormat") == "YAML":
        return yaml.safe_dump(content, sort_keys=False, width=1000)
    return json.dumps(content)


def _ssm(operation: str, params: Props, *, ignore: str = "") -> Props:
    """Call the region's own SSM API in this thread, the server's included: its document calls never wait."""
    from ministack import app

    headers = {"x-amz-target": f"AmazonSSM.{operation}", "content-type": "application/x-amz-json-1.1"}
    call = app.SERVICE_HANDLERS["ssm"]("POST", "/", headers, json.dumps(params).encode(), {})
    try:
        call.send(None)
    except StopIteration as finished:
        status, _, body = finished.value
    else:
        call.close()
        raise ResourceFailed(f"{operation} waited for something: it must not within a stack operation")
    answer: Props = json.loads(body or b"{}")
    if status >= 400:
        code = str(answer.get("__type", "")).rpartition("#")[2]
        if ignore and code == ignore:
            return {}
        raise ResourceFailed(f"{operation} failed: {code}: {answer.get('message') or answer.get('Message')}")
    return answer


# -- security group ingress, query definitions -------------------------------------------------------------------------
def _ingress_create(logical_id: str, props: Props, stack: str) -> Created:
    from ministack.services import ec2
    from ministack.services.cloudformation import provisioners

    del logical_id, stack
    group = ec2._security_groups.get(props.get("GroupId", ""))
    if group is None:
        raise ResourceFailed(f"The security group '{props.get('GroupId')}' does not exist")
    group["IpPermissions"] += provisioners._ec2_sg_permissions([props])
    rule_id = f"sgr-{uuid.uuid4().hex[:17]}"
    return rule_id, {"Id": rule_id}


def _ingress_update(physical_id: str, old: Props, new: Props, stack: str, logical_id: str | None = None) -> Created:
    created = _ingress_create(logical_id or physical_id, new, stack)
    _ingress_delete(physical_id, old)
    return created


def _ingress_delete(physical_id: str, props: Props) -> None:
    from ministack.services import ec2
    from ministack.services.cloudformation import provisioners

    del physical_id
    group = ec2._security_groups.get(props.get("GroupId", ""))
    for permission in provisioners._ec2_sg_permissions([props]):
        if group and permission in group["IpPermissions"]:
            group["IpPermissions"].remove(permission)


def _query_create(logical_id: str, props: Props, stack: str) -> Created:
    del logical_id, props, stack
    query_id = str(uuid.uuid4())
    return query_id, {"QueryDefinitionId": query_id}


def _query_update(physical_id: str, old: Props, new: Props, stack: str, logical_id: str | None = None) -> Created:
    del old, new, stack, logical_id
    return physical_id, {"QueryDefinitionId": physical_id}


# -- types that ministack has -----------------------------------------------------------------------------------------
def _vpc(entry: Entry) -> Entry:
    def finish(physical_id: str, attributes: Props, props: Props) -> Created:
        return physical_id, {**attributes, "CidrBlock": props.get("CidrBlock", ""), "CidrBlockAssociations": []}

    return _wrapped(entry, finish)


def _instance_profile(entry: Entry) -> Entry:
    from ministack.services import iam

    def arn_of(name: str) -> str:
        return str((iam._instance_profiles.get(name) or {}).get("Arn", name))

    def finish(physical_id: str, attributes: Props, props: Props) -> Created:
        del props
        return physical_id.rpartition("/")[2], attributes

    return _wrapped(entry, finish, inner_id=arn_of)


def _secret(entry: Entry) -> Entry:
    from ministack.services import secretsmanager

    def name_of(arn: str) -> str:
        return next((str(name) for name, secret in secretsmanager._secrets.items() if secret.get("ARN") == arn), arn)

    def finish(physical_id: str, attributes: Props, props: Props) -> Created:
        del physical_id, props
        return str(attributes["Arn"]), attributes

    return _wrapped(entry, finish, inner_id=name_of)


def _hosted_zone(entry: Entry) -> Entry:
    from ministack.services import route53

    def finish(physical_id: str, attributes: Props, props: Props) -> Created:
        zone = route53._zones[physical_id]
        zone["vpcs"] = [{"VPCId": vpc["VPCId"], "VPCRegion": vpc["VPCRegion"]} for vpc in props.get("VPCs") or []]
        zone["private"] = bool(zone["vpcs"])
        if zone["private"]:
            attributes = {k: v for k, v in attributes.items() if k != "NameServers"}
        return physical_id, attributes

    def check(props: Props) -> None:
        for vpc in props.get("VPCs") or []:
            if not vpc.get("VPCId") or not vpc.get("VPCRegion"):
                raise ResourceFailed("Properties validation failed: VPCs need VPCId and VPCRegion")

    return _wrapped(entry, finish, check=check)


def _function(entry: Entry) -> Entry:
    from ministack.services import ec2, lambda_svc

    def check(props: Props) -> None:
        vpc = props.get("VpcConfig") or {}
        problem = authorisation.role_problem(props.get("Role", ""), in_vpc=bool(vpc.get("SubnetIds")))
        target = (props.get("DeadLetterConfig") or {}).get("TargetArn", "")
        if problem is None and ":sqs:" in target and not authorisation.role_may(props["Role"], "sqs:SendMessage", target):
            problem = "The provided execution role does not have permissions to call SendMessage on SQS"
        if problem:
            raise ResourceFailed(f'Resource handler returned message: "{problem}" (HandlerErrorCode: InvalidRequest)')

    def finish(physical_id: str, attributes: Props, props: Props) -> Created:
        record = lambda_svc._functions[physical_id]
        reserved = props.get("ReservedConcurrentExecutions")
        record["concurrency"] = None if reserved is None else int(reserved)
        config = record["config"]
        config.pop("DeadLetterConfig", None)
        config.pop("VpcConfig", None)
        if props.get("DeadLetterConfig"):
            config["DeadLetterConfig"] = props["DeadLetterConfig"]
        vpc = props.get("VpcConfig") or {}
        if vpc.get("SubnetIds"):
            subnet = ec2._subnets.get(vpc["SubnetIds"][0]) or {}
            config["VpcConfig"] = {
                "SubnetIds": vpc["SubnetIds"],
                "SecurityGroupIds": vpc.get("SecurityGroupIds", []),
                "VpcId": subnet.get("VpcId", ""),
            }
        return physical_id, attributes

    return _wrapped(entry, finish, check=check)
