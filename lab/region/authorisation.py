"""IAM decides with the resources and condition keys that AWS uses, so a right policy passes and a narrow one refuses.

ministack evaluates policies well but asks them about the wrong thing: SendCommand, GetParameters, GetParametersByPath,
documents and SendTask* about `*` or a parameter; describing calls about the resource that is named; a secret to be
created about an ARN without its ending. Tags of instances, groups, target groups and secrets, Route 53's keys,
dynamodb:LeadingKeys, cloudwatch:namespace, ssm:Overwrite and secretsmanager:Name are absent (under ForAllValues that
grants everything); iam:PassRole, the tagging of what is created and the trust of a function's role are never asked.

Made true: each request is turned into AWS's list of checks (action, resource, keys), all of which must be allowed.
A call that AWS would refuse is refused; nothing is allowed that a policy does not allow.
"""

from __future__ import annotations

import contextvars
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.region.region import Region

Context = dict[str, Any]
Params = dict[str, Any]


@dataclass
class Check:
    """One question to the policies: may the caller do this to that, with these condition keys."""

    action: str
    resource: str
    context: Context = field(default_factory=dict)


@dataclass
class Request:
    """An API call in terms that checks are made from."""

    service: str
    operation: str
    params: Params
    region: str
    account: str
    path: str
    body: bytes

    def arn(self, service: str, resource: str, *, account: str | None = None) -> str:
        """ARN of a resource of the caller's region and account."""
        return f"arn:aws:{service}:{self.region}:{self.account if account is None else account}:{resource}"

    def all(self, name: str) -> list[str]:
        """The values of a parameter that may be a list in JSON or `Name.1`, `Name.member.2` in a query."""
        if name in self.params:
            value = self.params[name]
            return [str(v) for v in value] if isinstance(value, list) else [str(value)]
        numbered = re.compile(rf"{re.escape(name)}\.(?:member\.)?(\d+)$")
        found = [(int(m[1]), v) for k, v in self.params.items() if (m := numbered.match(k))]
        return [str(v) for _, v in sorted(found)]

    def one(self, name: str) -> str:
        """The value of a parameter, "" if it is absent."""
        return next(iter(self.all(name)), "")


_request: contextvars.ContextVar[Request | None] = contextvars.ContextVar("lab_request", default=None)
_item_keys: contextvars.ContextVar[Iterator[list[str]] | None] = contextvars.ContextVar("lab_item_keys", default=None)


def apply(region: Region) -> None:
    """Ask AWS's questions in place of ministack's."""
    from ministack.core import iam_actions, iam_evaluator
    from ministack.services import lambda_svc

    resource_of, context_of, enforce_one = (
        iam_actions.extract_resource_arn,
        iam_actions.request_tag_context,
        iam_evaluator.enforce,
    )

    def extract_resource_arn(
        service: str, method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any], region_name: str,
        account: str,
    ) -> str:  # fmt: skip
        _request.set(None)
        _item_keys.set(None)
        default = str(resource_of(service, method, path, headers, body, query, region_name, account))
        action = iam_actions.extract_iam_action(service, method, path, headers, body, query) or ":"
        params = _params(body, query)
        request = Request(service, action.partition(":")[2], params, region_name, account, path, body)
        _request.set(request)
        checks = checks_of(request, action)
        return checks[0].resource if checks else default

    def request_tag_context(service: str, action: str, body: bytes, params: dict[str, Any]) -> Context:
        context = dict(context_of(service, action, body, params))
        request = _request.get()
        if request is not None:
            context.update(_keys_of(request))
        return context

    def enforce(access_key: str, action: str, service: str, region_name: str, resource_arn: str = "*", service_context: Any = None) -> Any:
        context = dict(service_context or {})
        request = _request.get()
        checks = checks_of(request, action) if request is not None and request.service == service else None
        if checks is None:
            keys = _item_keys.get()
            if keys is not None and "dynamodb:EnclosingOperation" in context:
                context["dynamodb:LeadingKeys"] = next(keys, [])
            checks = [Check(action, resource_arn)]
        if request is not None and request.service == service:
            checks = checks + _passed_roles(request) + _given_tags(request, checks)
        for check in checks:
            keys_of_tags = _tag_keys(check)
            denied = enforce_one(
                access_key, check.action, service, region_name, check.resource,
                {**context, **keys_of_tags, **check.context},
            )  # fmt: skip
            if denied:
                return denied
        return None

    iam_actions.extract_resource_arn = extract_resource_arn
    iam_actions.request_tag_context = request_tag_context
    iam_evaluator.enforce = enforce
    _check_roles_of_functions(lambda_svc)


# -- for other overrides ---------------------------------------------------------------------------------------------
def role_may(role_arn: str, action: str, resource: str, context: Context | None = None) -> bool:
    """Whether the role's policies and boundary allow `action` on `resource`; False for a role that does not exist."""
    from ministack.core import iam_evaluator
    from ministack.services import iam

    account, name = (role_arn.split(":")[4] if role_arn.count(":") >= 5 else ""), role_arn.rpartition("/")[2]
    if not account or iam._roles.get_scoped(account, None, name) is None:
        return False
    asked = iam_evaluator.EvalContext(
        principal_arn=f"arn:aws:sts::{account}:assumed-role/{name}/service",
        principal_type="AssumedRole",
        principal_account=account,
        action=action,
        resource_arn=resource,
        region=resource.split(":")[3] if resource.count(":") >= 5 else "",
        service_context={key.lower(): value for key, value in (context or {}).items()},
    )
    policies = iam_evaluator._gather_role_policies(name, account)
    limits = iam_evaluator._permissions_boundary(iam._roles, name, account)
    return bool(iam_evaluator.evaluate(asked, policies, *limits).decision == "Allow")


def role_trusts(role_arn: str, service: str, context: Context | None = None) -> bool:
    """Whether a service, such as `lambda.amazonaws.com`, may assume the role."""
    from ministack.core import iam_evaluator
    from ministack.services import iam

    account, name = (role_arn.split(":")[4] if role_arn.count(":") >= 5 else ""), role_arn.rpartition("/")[2]
    role = iam._roles.get_scoped(account, None, name) if account else None
    if role is None:
        return False
    document = role.get("AssumeRolePolicyDocument") or {}
    document = json.loads(document) if isinstance(document, str) else document
    statements = document.get("Statement", [])
    resourced = [{**s, "Resource": "*"} for s in (statements if isinstance(statements, list) else [statements])]
    asked = iam_evaluator.EvalContext(
        principal_arn="", principal_type="Service", principal_account=account, action="sts:AssumeRole",
        resource_arn=role_arn, region="", service_context={k.lower(): v for k, v in (context or {}).items()},
    )  # fmt: skip
    return bool(iam_evaluator.evaluate_resource_policy({"Statement": resourced}, asked, service=service).decision == "Allow")


# -- the checks of a request -----------------------------------------------------------------------------------------
def checks_of(request: Request, action: str) -> list[Check] | None:
    """AWS's checks of a request, None where ministack's own resource is right."""
    make = _CHECKS.get(request.service)
    resources = make(request) if make else None
    if resources is None:
        return None
    return [Check(action, resource) for resource in resources]


def _ssm(request: Request) -> list[str] | None:
    operation = request.operation
    if operation == "SendCommand":
        instances = [
            request.arn("ssm", f"managed-instance/{i}") if i.startswith("mi-") else request.arn("ec2", f"instance/{i}")
            for i in request.all("InstanceIds")
        ]
        return [_document(request, request.one("DocumentName")), *(instances or [request.arn("ec2", "instance/*")])]
    if operation in ("GetParameter", "GetParameterHistory", "PutParameter", "DeleteParameter", "LabelParameterVersion"):
        return [_parameter(request, request.one("Name"))]
    if operation in ("GetParameters", "DeleteParameters"):
        return [_parameter(request, name) for name in request.all("Names")] or ["*"]
    if operation == "GetParametersByPath":
        return [_parameter(request, request.one("Path"))]
    if "Document" in operation and request.one("Name"):
        return [_document(request, request.one("Name"))]
    if operation in ("AddTagsToResource", "RemoveTagsFromResource", "ListTagsForResource"):
        if request.one("ResourceType") == "Document":
            return [_document(request, request.one("ResourceId"))]
        return None
    return ["*"]


def _parameter(request: Request, name: str) -> str:
    if name.startswith("arn:"):
        return name
    name = name.split(":")[0]
    return request.arn("ssm", f"parameter/{name.removeprefix('/')}")


def _document(request: Request, name: str) -> str:
    if name.startswith("arn:"):
        return name
    return request.arn("ssm", f"document/{name}", account="" if name.startswith("AWS-") else None)


def _autoscaling(request: Request) -> list[str] | None:
    if request.operation.startswith("Describe"):
        return ["*"]
    if request.operation in ("CreateOrUpdateTags", "DeleteTags"):
        tagged = {str(v) for k, v in request.params.items() if re.fullmatch(r"Tags\.member\.\d+\.ResourceId", k)}
        return [_group_arn(request, name) for name in sorted(tagged)] or ["*"]
    name = request.one("AutoScalingGroupName")
    if not name and request.one("InstanceId"):
        name = _group_of_instance(request.one("InstanceId"))
    return [_group_arn(request, name)] if name else ["*"]


def _group_arn(request: Request, name: str) -> str:
    from ministack.services import autoscaling

    record = autoscaling._asgs.get(name) or {}
    arn = record.get("AutoScalingGroupARN") if isinstance(record, dict) else None
    return str(arn or request.arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{name}"))


def _group_of_instance(instance_id: str) -> str:
    return _ec2_tags(f"instance/{instance_id}").get("aws:autoscaling:groupName", "")


_EC2_KINDS = {
    "i": "instance", "vpc": "vpc", "subnet": "subnet", "sg": "security-group", "lt": "launch-template", "vol": "volume",
    "eni": "network-interface", "rtb": "route-table", "igw": "internet-gateway", "ami": "image", "snap": "snapshot",
    "eipalloc": "elastic-ip", "vpce": "vpc-endpoint",
}  # fmt: skip


def _ec2(request: Request) -> list[str] | None:
    if request.operation.startswith(("Describe", "GetConsole")) and request.operation != "DescribeVerifiedAccess":
        return ["*"]
    if request.operation in ("CreateTags", "DeleteTags"):
        ids = request.all("ResourceId")
    elif request.operation == "ModifyInstanceAttribute" or re.fullmatch("(Terminate|Stop|Start|Reboot)Instances", request.operation):
        ids = request.all("InstanceId")
    else:
        return None
    return [request.arn("ec2", f"{_EC2_KINDS.get(i.partition('-')[0], 'instance')}/{i}") for i in ids] or ["*"]


def _states(request: Request) -> list[str] | None:
    if request.operation in ("SendTaskSuccess", "SendTaskFailure", "SendTaskHeartbeat"):
        return [_machine_of_token(request, request.one("taskToken"))]
    if request.operation in ("ListStateMachines", "ListActivities", "ValidateStateMachineDefinition"):
        return ["*"]
    return None


def _machine_of_token(request: Request, token: str) -> str:
    """ARN of the machine whose task has or had the token; a token that is nobody's can do nothing: any machine will do."""
    from ministack.services import stepfunctions

    from lab.region import region as region_module

    machines = getattr(region_module._running, "state_machines", None)
    arn = machines.engine.machine_of_token(token) if machines is not None else None
    if arn is None:
        from lab.region.region import Region

        role = _role_of(Region.principal())
        known = [str(arn) for arn in stepfunctions._state_machines]
        arn = next((a for a in known if role and role_may(role, f"states:{request.operation}", a)), None)
    return str(arn or "*")


def _role_of(principal: str) -> str:
    found = re.fullmatch(r"arn:aws:sts::(\d{12}):assumed-role/([^/]+)/.*", principal)
    return f"arn:aws:iam::{found[1]}:role/{found[2]}" if found else ""


def _lambda(request: Request) -> list[str] | None:
    from ministack.services import lambda_svc

    if request.operation != "InvokeFunction":
        return None
    name = request.path.split("/functions/")[-1].split("/")[0]
    if not name or name.startswith("arn"):
        return None
    qualifier = request.one("Qualifier")
    return [str(lambda_svc._func_arn(name)) + (f":{qualifier}" if qualifier else "")]


def _elastic_load_balancing(request: Request) -> list[str] | None:
    return ["*"] if request.operation.startswith("Describe") else None


def _secrets_manager(request: Request) -> list[str] | None:
    """A new secret's ARN ends in six characters that nobody knows yet; one that is not there has only what the caller calls it."""
    from ministack.services import secretsmanager

    if request.operation == "CreateSecret":
        return [request.arn("secretsmanager", f"secret:{request.one('Name')}-XXXXXX")]
    asked = request.one("SecretId")
    _, secret = secretsmanager._resolve(asked)
    return [str(secret["ARN"]) if secret else asked or "*"]


_CHECKS: dict[str, Callable[[Request], list[str] | None]] = {
    "autoscaling": _autoscaling,
    "ec2": _ec2,
    "elasticloadbalancing": _elastic_load_balancing,
    "lambda": _lambda,
    "secretsmanager": _secrets_manager,
    "ssm": _ssm,
    "states": _states,
}


# -- condition keys --------------------------------------------------------------------------------------------------
def _keys_of(request: Request) -> Context:
    if request.service == "route53" and request.operation == "ChangeResourceRecordSets":
        return _record_keys(request.body.decode("utf-8", "replace"))
    if request.service == "monitoring" and request.operation == "PutMetricData":
        namespace = request.one("Namespace")
        return {"cloudwatch:namespace": namespace} if namespace else {}
    if request.service == "dynamodb":
        keys = list(_leading_keys(request.operation, request.params))
        if request.operation.startswith("Transact"):
            _item_keys.set(iter(keys))
            return {}
        values = [value for item in keys for value in item]
        return {"dynamodb:LeadingKeys": values} if values else {}
    named = _KEYS_OF_PARAMETERS.get(request.service, {})
    return {
        key: str(request.params[name]).lower() if isinstance(request.params[name], bool) else request.params[name]
        for name, key in named.items()
        if name in request.params
    }


_KEYS_OF_PARAMETERS: dict[str, dict[str, str]] = {
    "ssm": {"Overwrite": "ssm:Overwrite", "Recursive": "ssm:Recursive"},
    "secretsmanager": {
        "Name": "secretsmanager:Name", "SecretId": "secretsmanager:SecretId", "VersionStage": "secretsmanager:VersionStage",
    },
}  # fmt: skip
"""Parameters that are condition keys; absent from the request, absent from the question, as on AWS."""


def _record_keys(xml: str) -> Context:
    changes = re.findall(r"<Change>(.*?)</Change>", xml, re.S)

    def each(tag: str) -> list[str]:
        found = (re.search(rf"<{tag}>([^<]*)</{tag}>", change) for change in changes)
        return [match[1] for match in found if match]

    prefix = "route53:ChangeResourceRecordSets"
    return {
        f"{prefix}Actions": sorted(set(each("Action"))),
        f"{prefix}NormalizedRecordNames": sorted({name.rstrip(".").lower() for name in each("Name")}),
        f"{prefix}RecordTypes": sorted(set(each("Type"))),
    }


def _leading_keys(operation: str, params: Params) -> Iterable[list[str]]:
    """Values of the partition key, one list an item that the request names."""
    if operation.startswith("Transact"):
        for item in params.get("TransactItems") or []:
            for member in ("ConditionCheck", "Put", "Delete", "Update", "Get"):
                if isinstance(item, dict) and isinstance(item.get(member), dict):
                    yield _item_key(item[member].get("TableName"), item[member].get("Key") or item[member].get("Item"))
    elif operation.startswith("Batch"):
        for table, wanted in (params.get("RequestItems") or {}).items():
            rows = wanted.get("Keys") or [] if isinstance(wanted, dict) else wanted
            for row in rows:
                put = row.get("PutRequest", {}).get("Item") or row.get("DeleteRequest", {}).get("Key") or row
                yield _item_key(table, put)
    elif operation == "Query":
        yield _queried_key(params)
    elif params.get("Key") or params.get("Item"):
        yield _item_key(params.get("TableName"), params.get("Key") or params.get("Item"))


def _partition_key(table: Any) -> str:
    from ministack.services import dynamodb

    record = dynamodb._tables.get(str(table or "").rpartition("/")[2]) or {}
    schema = record.get("KeySchema") or []
    return next((k["AttributeName"] for k in schema if k["KeyType"] == "HASH"), "pk")


def _item_key(table: Any, item: Any) -> list[str]:
    value = item.get(_partition_key(table)) if isinstance(item, dict) else None
    return [str(v) for v in value.values()] if isinstance(value, dict) else []


def _queried_key(params: Params) -> list[str]:
    names, values = params.get("ExpressionAttributeNames") or {}, params.get("ExpressionAttributeValues") or {}
    wanted = _partition_key(params.get("TableName"))
    for name, value in re.findall(r"([#\w]+)\s*=\s*(:\w+)", params.get("KeyConditionExpression") or ""):
        if names.get(name, name) == wanted and value in values:
            return [str(v) for v in values[value].values()]
    condition = (params.get("KeyConditions") or {}).get(wanted) or {}
    return [str(v) for one in condition.get("AttributeValueList") or [] for v in one.values()]


def _tag_keys(check: Check) -> Context:
    """The tags of the resource as aws:ResourceTag and as the service's own key."""
    if not check.resource.startswith("arn:"):
        return {}
    service = check.resource.split(":")[2]
    lookup = _TAGS_OF.get(service)
    tags = lookup(check.resource) if lookup else {}
    prefixes = ["aws:ResourceTag/"]
    asking = check.action.partition(":")[0]
    prefixes.append("ssm:resourceTag/" if asking == "ssm" else f"{asking}:ResourceTag/")
    return {f"{prefix}{name}".lower(): value for prefix in prefixes for name, value in tags.items()}


def _as_map(tags: Iterable[Params]) -> dict[str, str]:
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in tags}


def _ec2_tags(arn: str) -> dict[str, str]:
    from ministack.services import ec2

    return _as_map(ec2._tags.get(arn.rpartition("/")[2]) or [])


def _group_tags(arn: str) -> dict[str, str]:
    from ministack.services import autoscaling

    name = arn.partition("autoScalingGroupName/")[2]
    return _as_map(autoscaling._tags.get(name) or [])


def _load_balancer_tags(arn: str) -> dict[str, str]:
    from ministack.services import alb

    return _as_map(alb._tags.get(arn) or [])


def _secret_tags(arn: str) -> dict[str, str]:
    from ministack.services import secretsmanager

    _, secret = secretsmanager._resolve(arn)
    return _as_map(secret["Tags"] if secret else [])


_TAGS_OF: dict[str, Callable[[str], dict[str, str]]] = {
    "ec2": _ec2_tags,
    "autoscaling": _group_tags,
    "elasticloadbalancing": _load_balancer_tags,
    "secretsmanager": _secret_tags,
}


def _given_tags(request: Request, checks: list[Check]) -> list[Check]:
    """What is created with tags also asks whether it may be tagged."""
    action = {"CreateSecret": "secretsmanager:TagResource", "PutParameter": "ssm:AddTagsToResource"}.get(request.operation)
    return [Check(action, check.resource) for check in checks] if action and request.params.get("Tags") else []


# -- passed and trusted roles ----------------------------------------------------------------------------------------
_PASSING: dict[tuple[str, str], tuple[str, str]] = {
    ("lambda", "CreateFunction"): ("Role", "lambda.amazonaws.com"),
    ("lambda", "UpdateFunctionConfiguration"): ("Role", "lambda.amazonaws.com"),
    ("states", "CreateStateMachine"): ("roleArn", "states.amazonaws.com"),
    ("states", "UpdateStateMachine"): ("roleArn", "states.amazonaws.com"),
    ("events", "PutRule"): ("RoleArn", "events.amazonaws.com"),
    ("autoscaling", "PutLifecycleHook"): ("RoleARN", "autoscaling.amazonaws.com"),
    ("ssm", "SendCommand"): ("ServiceRoleArn", "ssm.amazonaws.com"),
}


def _passed_roles(request: Request) -> list[Check]:
    """iam:PassRole for each role that the request hands to a service."""
    roles: list[tuple[str, str]] = []
    if (request.service, request.operation) in _PASSING:
        name, service = _PASSING[request.service, request.operation]
        roles = [(role, service) for role in request.all(name)]
    elif (request.service, request.operation) == ("events", "PutTargets"):
        roles = [(t["RoleArn"], "events.amazonaws.com") for t in request.params.get("Targets") or [] if t.get("RoleArn")]
    elif request.service == "scheduler" and request.operation in ("CreateSchedule", "UpdateSchedule"):
        role = (request.params.get("Target") or {}).get("RoleArn")
        roles = [(role, "scheduler.amazonaws.com")] if role else []
    elif request.service == "ec2" and request.operation == "RunInstances":
        roles = [(role, "ec2.amazonaws.com") for role in _roles_of_profile(request)]
    return [Check("iam:PassRole", role, {"iam:passedtoservice": service}) for role, service in roles if role]


def _roles_of_profile(request: Request) -> list[str]:
    from ministack.services import iam

    name = request.one("IamInstanceProfile.Name") or request.one("IamInstanceProfile.Arn").rpartition("/")[2]
    profile = iam._instance_profiles.get(name) or {} if name else {}
    names = [r if isinstance(r, str) else r.get("RoleName", "") for r in profile.get("Roles", [])]
    return [str((iam._roles.get(r) or {}).get("Arn", "")) for r in names]


def role_problem(role_arn: str, *, in_vpc: bool) -> str | None:
    """Why Lambda refuses a function with this role, None if it does not."""
    if not role_trusts(role_arn, "lambda.amazonaws.com"):
        return "The role defined for the function cannot be assumed by Lambda."
    if in_vpc and not role_may(role_arn, "ec2:CreateNetworkInterface", "*"):
        return "The provided execution role does not have permissions to call CreateNetworkInterface on EC2"
    return None


def _check_roles_of_functions(lambda_svc: Any) -> None:
    from ministack.core.responses import error_response_json

    create = lambda_svc._create_function

    def create_function(data: Params) -> Any:
        in_vpc = bool((data.get("VpcConfig") or {}).get("SubnetIds"))
        problem = role_problem(data.get("Role", ""), in_vpc=in_vpc)
        return error_response_json("InvalidParameterValueException", problem, 400) if problem else create(data)

    lambda_svc._create_function = create_function


# -- parameters ------------------------------------------------------------------------------------------------------
def _params(body: bytes, query: dict[str, Any]) -> Params:
    params: Params = {k: (v[0] if isinstance(v, list) and v else v) for k, v in query.items()}
    if body[:1] == b"{":
        try:
            params.update(json.loads(body))
        except ValueError:
            return params
    return params
