"""Auto Scaling groups launch, hold, replace and end real instances of the fleet.

ministack's groups invent InService ids without instances, complete every lifecycle action with success and without effect,
know no lifecycle states, no activities, no TerminateInstanceInAutoScalingGroup, SuspendProcesses or instance protection, and
their template entry drops LifecycleHookSpecificationList. Made true: the whole API below, by lab.fleet.groups, and the template
entries AWS::AutoScaling::AutoScalingGroup and AWS::AutoScaling::LifecycleHook. What is not listed is left to ministack if it
touches no group (launch configurations, policies, schedules) and else refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lab.fleet import wire
from lab.fleet.groups import Group, Groups, Hook, LaunchFailed, Member
from lab.fleet.timers import RealTimers
from lab.fleet.wire import ApiError
from lab.region import instances

if TYPE_CHECKING:
    from lab.region.region import Region

GROUP_TYPE = "AWS::AutoScaling::AutoScalingGroup"
HOOK_TYPE = "AWS::AutoScaling::LifecycleHook"
DELETE_LIMIT_S = 900.0
"""Longest wait in seconds of a stack deletion for a group's instances and their hooks."""
_LEFT_TO_MINISTACK = (
    "CreateLaunchConfiguration", "DescribeLaunchConfigurations", "DeleteLaunchConfiguration", "PutScalingPolicy",
    "DescribePolicies", "DeletePolicy", "PutScheduledUpdateGroupAction", "DescribeScheduledActions", "DeleteScheduledAction",
)  # fmt: skip
Handler = Callable[["Api", Mapping[str, Any]], Mapping[str, Any]]


class _NoHost:
    """Stands in while no fleet is attached."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def launch(self, group: Group, subnet_id: str) -> Member:
        fleet = self._region.fleet  # type: ignore[attr-defined]
        if fleet is None:
            raise LaunchFailed("the lab has no fleet: instances cannot be launched")
        member: Member = fleet.launch(group, subnet_id)
        return member

    def terminate(self, instance_id: str) -> None:
        fleet = self._region.fleet  # type: ignore[attr-defined]
        if fleet is not None:
            fleet.terminate(instance_id)


def apply(region: Region) -> None:
    """Give the region its groups, and put their API in place of ministack's."""
    from ministack import app
    from ministack.services import autoscaling
    from ministack.services.cloudformation import provisioners

    if not hasattr(region, "fleet"):
        region.fleet = None  # type: ignore[attr-defined]
    timers = RealTimers()
    region.at_stop(timers.stop)
    region.timers = timers  # type: ignore[attr-defined]

    def publish(detail_type: str, detail: dict[str, Any], resources: list[str]) -> None:
        fleet = region.fleet  # type: ignore[attr-defined]
        if fleet is not None:
            fleet.publish("aws.autoscaling", detail_type, detail, resources)

    groups = Groups(timers, _NoHost(region), publish, region.journal.record, account=region.account, region=region.name)
    region.groups = groups  # type: ignore[attr-defined]

    def mirror(name: str, tags: list[dict[str, Any]] | None) -> None:
        """ministack's tag API and the region's authorisation read the tags here."""
        if tags is None:
            autoscaling._tags.pop(name, None)
            autoscaling._asgs.pop(name, None)
        else:
            autoscaling._tags[name] = tags
            autoscaling._asgs[name] = {"AutoScalingGroupName": name, "AutoScalingGroupARN": groups.group(name).arn, "Tags": tags}

    groups.on_tags = mirror
    api = Api(region, groups)
    original = app.SERVICE_HANDLERS["autoscaling"]

    async def handle(method: str, path: str, headers: Any, body: bytes, query: Any) -> wire.Answer:
        parameters = wire.flat(body or b"", query)
        action = parameters.get("Action", "")
        if action in _LEFT_TO_MINISTACK:
            answer: wire.Answer = await original(method, path, headers, body, query)
            return answer
        try:
            if action not in HANDLERS:
                raise ApiError("InvalidAction", f"the lab's Auto Scaling has no action {action}")
            operation = wire.service_model("autoscaling").operation_model(action)
            return wire.answer(operation, HANDLERS[action](api, wire.parse(operation, parameters)))
        except ApiError as error:
            return wire.error_answer("autoscaling", error)

    app.SERVICE_HANDLERS["autoscaling"] = handle
    handlers = provisioners._RESOURCE_HANDLERS
    handlers[GROUP_TYPE] = {
        "create": api.stack_create, "update": api.stack_update, "update_with_logical_id": True, "delete": api.stack_delete,
    }  # fmt: skip
    handlers[HOOK_TYPE] = {
        "create": api.stack_hook_create, "update": api.stack_hook_update, "update_with_logical_id": True,
        "delete": api.stack_hook_delete,
    }  # fmt: skip


class Api:
    """The actions and template entries, bound to one region."""

    def __init__(self, region: Region, groups: Groups) -> None:
        self.region, self.groups = region, groups

    # -- CloudFormation: calls come from a worker thread and may wait ----------------------------------------------------

    def stack_create(self, logical_id: str, props: Mapping[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        """A group from a template; its hooks are there before its first instance."""
        from ministack.services.cloudformation import provisioners

        name = props.get("AutoScalingGroupName") or provisioners._physical_name(stack, logical_id, max_len=255)
        given = _from_template(props)
        _check_template(given)
        try:
            group = self.groups.create({**given, "AutoScalingGroupName": name})
        except ApiError as error:
            raise ValueError(str(error)) from None
        return name, {"AutoScalingGroupARN": group.arn, "Arn": group.arn}

    def stack_update(
        self, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any], stack: str, logical_id: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Change the group in place; another name makes another group. Its inline hooks are changed too, as on AWS."""
        if new.get("AutoScalingGroupName") not in (None, physical_id):
            created = self.stack_create(logical_id or physical_id, new, stack)
            self.stack_delete(physical_id, old)
            return created
        given, before = _from_template(new), _from_template(old)
        _check_template(given)
        try:
            wanted = {hook["LifecycleHookName"]: hook for hook in given.pop("LifecycleHookSpecificationList", [])}
            for hook in before.get("LifecycleHookSpecificationList", []):
                if hook["LifecycleHookName"] not in wanted:
                    self.groups.delete_hook(physical_id, hook["LifecycleHookName"])
            for hook in wanted.values():
                self.groups.put_hook(physical_id, hook)
            tags = {tag["Key"]: tag for tag in given.pop("Tags", [])}
            dropped = [{**tag, "ResourceId": physical_id} for tag in before.get("Tags", []) if tag["Key"] not in tags]
            self.groups.delete_tags([{k: tag[k] for k in ("Key", "ResourceId")} for tag in dropped])
            self.groups.put_tags([{**tag, "ResourceId": physical_id} for tag in tags.values()])
            if given.get("DesiredCapacity") == before.get("DesiredCapacity"):
                given.pop("DesiredCapacity", None)  # what somebody scaled in between stays
            wanted_arns, arns = given.pop("TargetGroupARNs", []), self.groups.group(physical_id).target_groups
            dropped_arns = [arn for arn in before.get("TargetGroupARNs", []) if arn not in wanted_arns]
            self.groups.attach_target_groups(physical_id, dropped_arns, attach=False)
            self.groups.attach_target_groups(physical_id, [arn for arn in wanted_arns if arn not in arns])
            self.groups.update(physical_id, given)
        except ApiError as error:
            raise ValueError(str(error)) from None
        arn = self.groups.group(physical_id).arn
        return physical_id, {"AutoScalingGroupARN": arn, "Arn": arn}

    def stack_delete(self, physical_id: str, props: Mapping[str, Any]) -> None:
        """Scale to nothing, honour the hooks, wait until the group is empty and gone."""
        self.groups.drain(physical_id)
        give_up = time.monotonic() + DELETE_LIMIT_S
        while self.groups.exists(physical_id):
            if time.monotonic() > give_up:
                raise ValueError(f"group {physical_id} still has instances after {DELETE_LIMIT_S:.0f} s")
            time.sleep(0.1)

    def stack_hook_create(self, logical_id: str, props: Mapping[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        from ministack.services.cloudformation import provisioners

        name = props.get("LifecycleHookName") or provisioners._physical_name(stack, logical_id, max_len=255)
        try:
            self.groups.put_hook(props["AutoScalingGroupName"], {**props, "LifecycleHookName": name})
        except ApiError as error:
            raise ValueError(str(error)) from None
        return name, {"LifecycleHookName": name}

    def stack_hook_update(
        self, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any], stack: str, logical_id: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        if (old.get("AutoScalingGroupName"), old.get("LifecycleHookName")) != (
            new.get("AutoScalingGroupName"),
            new.get("LifecycleHookName"),
        ):
            created = self.stack_hook_create(logical_id or physical_id, new, stack)
            self.stack_hook_delete(physical_id, old)
            return created
        return self.stack_hook_create(logical_id or physical_id, {**new, "LifecycleHookName": physical_id}, stack)

    def stack_hook_delete(self, physical_id: str, props: Mapping[str, Any]) -> None:
        if self.groups.exists(str(props.get("AutoScalingGroupName"))):
            self.groups.delete_hook(str(props["AutoScalingGroupName"]), physical_id)


def _from_template(props: Mapping[str, Any]) -> dict[str, Any]:
    """A template's properties as the API takes them: numbers as numbers, the subnets as one text, booleans as booleans."""
    given = {
        key: value
        for key, value in props.items()
        if value is not None and key not in ("Cooldown", "AutoScalingGroupName", "NotificationConfigurations")
    }
    for key in ("MinSize", "MaxSize", "DesiredCapacity", "HealthCheckGracePeriod", "MaxInstanceLifetime", "DefaultInstanceWarmup"):
        if key in given:
            given[key] = int(given[key])
    if "Cooldown" in props:
        given["DefaultCooldown"] = int(props["Cooldown"])
    if isinstance(given.get("VPCZoneIdentifier"), list):
        given["VPCZoneIdentifier"] = ",".join(given["VPCZoneIdentifier"])
    for key in ("NewInstancesProtectedFromScaleIn", "CapacityRebalance"):
        if key in given:
            given[key] = str(given[key]).lower() == "true"
    given["Tags"] = [
        {**tag, "PropagateAtLaunch": str(tag.get("PropagateAtLaunch", False)).lower() == "true"} for tag in props.get("Tags") or []
    ]
    return given


def _check_template(given: Mapping[str, Any]) -> None:
    _check_target_groups(given)
    if given.get("LaunchTemplate"):
        try:
            instances.template_of(given["LaunchTemplate"])
        except LaunchFailed as failure:
            raise ValueError(f"You must use a valid fully-formed launch template. {failure}") from None


def _check_target_groups(given: Mapping[str, Any]) -> None:
    from ministack.services import alb

    found = [alb._tgs.get(arn) for arn in given.get("TargetGroupARNs") or []]
    if any(group is None or group["TargetType"] != "instance" for group in found):
        raise ValueError("Provided Target Groups may not be valid. Please ensure they exist and try again.")


# -- actions -------------------------------------------------------------------------------------------------------------


def _create(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    _check_launch_template(given)
    api.groups.create(given)
    return {}


def _update(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    _check_launch_template(given)
    api.groups.update(given["AutoScalingGroupName"], given)
    return {}


def _check_launch_template(given: Mapping[str, Any]) -> None:
    try:
        _check_template(given)
    except ValueError as error:
        raise ApiError("ValidationError", str(error)) from None


def _delete(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.delete(given["AutoScalingGroupName"], bool(given.get("ForceDelete")))
    return {}


def _describe_groups(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = api.groups.groups(given.get("AutoScalingGroupNames") or ())
    for one in given.get("Filters") or []:
        found = [group for group in found if _tag_filter(group.tags, one)]
    page, token = _page(given, found, 50)
    return {"AutoScalingGroups": [_group(group) for group in page], **token}


def _tag_filter(tags: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> bool:
    name, values = wanted.get("Name", ""), wanted.get("Values") or []
    if name.startswith("tag:"):
        return any(tag["Key"] == name[4:] and tag["Value"] in values for tag in tags)
    if name in ("tag-key", "key"):
        return any(tag["Key"] in values for tag in tags)
    if name in ("tag-value", "value"):
        return any(tag["Value"] in values for tag in tags)
    raise ApiError("ValidationError", f"Filter type {name} is not correct. Allowed Filter types are: tag-key, tag-value, tag:<key>")


def _describe_instances(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    wanted = given.get("InstanceIds")
    found = [
        {**_member(member), "AutoScalingGroupName": group.name, "HealthStatus": member.health.upper()}
        for group in api.groups.groups()
        for member in list(group.members.values())
        if not wanted or member.instance_id in wanted
    ]
    page, token = _page(given, found, 50)
    return {"AutoScalingInstances": page, **token}


def _describe_activities(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    name = given.get("AutoScalingGroupName")
    chosen = [api.groups.group(name)] if name else api.groups.groups()
    ids = given.get("ActivityIds")
    found = sorted(
        (dict(activity) for group in chosen for activity in group.activities if not ids or activity["ActivityId"] in ids),
        key=lambda activity: activity["StartTime"],
        reverse=True,
    )
    page, token = _page(given, found, 100)
    return {"Activities": page, **token}


def _set_desired(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.set_desired(given["AutoScalingGroupName"], given["DesiredCapacity"])
    return {}


def _terminate(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    _, activity = api.groups.terminate(given["InstanceId"], given["ShouldDecrementDesiredCapacity"])
    return {"Activity": activity}


def _complete(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.complete(
        given["AutoScalingGroupName"], given["LifecycleHookName"], given["LifecycleActionResult"],
        token=given.get("LifecycleActionToken"), instance_id=given.get("InstanceId"), by=api.region.principal(),
    )  # fmt: skip
    return {}


def _heartbeat(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.heartbeat(
        given["AutoScalingGroupName"], given["LifecycleHookName"], token=given.get("LifecycleActionToken"),
        instance_id=given.get("InstanceId"), by=api.region.principal(),
    )  # fmt: skip
    return {}


def _put_hook(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.put_hook(given["AutoScalingGroupName"], given)
    return {}


def _delete_hook(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.delete_hook(given["AutoScalingGroupName"], given["LifecycleHookName"])
    return {}


def _describe_hooks(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    group = api.groups.group(given["AutoScalingGroupName"])
    wanted = given.get("LifecycleHookNames")
    return {"LifecycleHooks": [_hook(group, hook) for name, hook in sorted(group.hooks.items()) if not wanted or name in wanted]}


def _hook_types(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"LifecycleHookTypes": ["autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"]}


def _suspend(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.suspend(given["AutoScalingGroupName"], given.get("ScalingProcesses") or ())
    return {}


def _resume(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.resume(given["AutoScalingGroupName"], given.get("ScalingProcesses") or ())
    return {}


def _protect(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.protect(given["AutoScalingGroupName"], given["InstanceIds"], given["ProtectedFromScaleIn"])
    return {}


def _set_health(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.set_health(given["InstanceId"], given["HealthStatus"])
    return {}


def _attach(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        _check_target_groups(given)
    except ValueError as error:
        raise ApiError("ValidationError", str(error)) from None
    api.groups.attach_target_groups(given["AutoScalingGroupName"], given["TargetGroupARNs"])
    return {}


def _detach(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.attach_target_groups(given["AutoScalingGroupName"], given["TargetGroupARNs"], attach=False)
    return {}


def _describe_target_groups(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    arns = api.groups.group(given["AutoScalingGroupName"]).target_groups
    return {"LoadBalancerTargetGroups": [{"LoadBalancerTargetGroupARN": arn, "State": "InService"} for arn in arns]}


def _put_tags(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.put_tags(given["Tags"])
    return {}


def _delete_tags(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    api.groups.delete_tags(given["Tags"])
    return {}


def _describe_tags(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = [dict(tag) for group in api.groups.groups() for tag in group.tags]
    for one in given.get("Filters") or []:
        name, values = one.get("Name"), one.get("Values") or []
        keys = {"auto-scaling-group": "ResourceId", "key": "Key", "value": "Value", "propagate-at-launch": "PropagateAtLaunch"}
        if name not in keys:
            raise ApiError("ValidationError", f"Filter type {name} is not correct. Allowed Filter types are: {', '.join(keys)}")
        found = [tag for tag in found if (str(tag[keys[name]]).lower() if name == "propagate-at-launch" else tag[keys[name]]) in values]
    page, token = _page(given, found, 50)
    return {"Tags": page, **token}


def _account_limits(api: Api, given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "MaxNumberOfAutoScalingGroups": 500,
        "MaxNumberOfLaunchConfigurations": 200,
        "NumberOfAutoScalingGroups": len(api.groups.groups()),
        "NumberOfLaunchConfigurations": 0,
    }


HANDLERS: dict[str, Handler] = {
    "CreateAutoScalingGroup": _create,
    "UpdateAutoScalingGroup": _update,
    "DeleteAutoScalingGroup": _delete,
    "DescribeAutoScalingGroups": _describe_groups,
    "DescribeAutoScalingInstances": _describe_instances,
    "DescribeScalingActivities": _describe_activities,
    "SetDesiredCapacity": _set_desired,
    "TerminateInstanceInAutoScalingGroup": _terminate,
    "CompleteLifecycleAction": _complete,
    "RecordLifecycleActionHeartbeat": _heartbeat,
    "PutLifecycleHook": _put_hook,
    "DeleteLifecycleHook": _delete_hook,
    "DescribeLifecycleHooks": _describe_hooks,
    "DescribeLifecycleHookTypes": _hook_types,
    "SuspendProcesses": _suspend,
    "ResumeProcesses": _resume,
    "SetInstanceProtection": _protect,
    "SetInstanceHealth": _set_health,
    "AttachLoadBalancerTargetGroups": _attach,
    "DetachLoadBalancerTargetGroups": _detach,
    "DescribeLoadBalancerTargetGroups": _describe_target_groups,
    "CreateOrUpdateTags": _put_tags,
    "DeleteTags": _delete_tags,
    "DescribeTags": _describe_tags,
    "DescribeAccountLimits": _account_limits,
}


# -- shapes --------------------------------------------------------------------------------------------------------------


def _group(group: Group) -> dict[str, Any]:
    from lab.fleet.groups import _when

    settings = dict(group.settings)
    if settings.get("LaunchTemplate"):
        settings["LaunchTemplate"] = _shown_template(settings["LaunchTemplate"])
    zones = sorted({zone for zone in (_zone(subnet) for subnet in group.subnets) if zone})
    return {
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": group.arn,
        "DefaultCooldown": 300,
        "HealthCheckType": "EC2",
        "HealthCheckGracePeriod": 0,
        "TerminationPolicies": ["Default"],
        "NewInstancesProtectedFromScaleIn": False,
        "TargetGroupARNs": [],
        "LoadBalancerNames": [],
        **settings,
        "AvailabilityZones": zones or settings.get("AvailabilityZones") or [],
        "MinSize": group.min_size,
        "MaxSize": group.max_size,
        "DesiredCapacity": group.desired,
        "CreatedTime": _when(group.created_at),
        "Instances": [_member(member) for member in list(group.members.values())],
        "SuspendedProcesses": [{"ProcessName": name, "SuspensionReason": "User suspended"} for name in sorted(group.suspended)],
        "Tags": [dict(tag) for tag in group.tags],
        "EnabledMetrics": [],
        **({"Status": "Delete in progress"} if group.deleting else {}),
    }


def _shown_template(spec: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = instances.template_of(spec)
    except LaunchFailed:
        return dict(spec)
    return {"LaunchTemplateId": found["id"], "LaunchTemplateName": found["name"], "Version": str(spec.get("Version") or "$Default")}


def _zone(subnet_id: str) -> str | None:
    from ministack.services import ec2

    subnet = ec2._subnets.get(subnet_id)
    return str(subnet["AvailabilityZone"]) if subnet else None


def _member(member: Member) -> dict[str, Any]:
    return {
        "InstanceId": member.instance_id,
        "InstanceType": member.instance_type,
        "AvailabilityZone": member.zone,
        "LifecycleState": member.state,
        "HealthStatus": member.health,
        "ProtectedFromScaleIn": member.protected,
        **({"LaunchTemplate": member.launch_template} if member.launch_template else {}),
    }


def _hook(group: Group, hook: Hook) -> dict[str, Any]:
    return {
        "LifecycleHookName": hook.name,
        "AutoScalingGroupName": group.name,
        "LifecycleTransition": hook.transition,
        "NotificationTargetARN": hook.target_arn,
        "RoleARN": hook.role_arn,
        "NotificationMetadata": hook.metadata,
        "HeartbeatTimeout": hook.heartbeat_timeout_s,
        "GlobalTimeout": hook.global_timeout_s,
        "DefaultResult": hook.default_result,
    }


def _page(given: Mapping[str, Any], found: list[Any], most: int) -> tuple[list[Any], dict[str, str]]:
    try:
        first = int(json.loads(given["NextToken"])) if given.get("NextToken") else 0
    except ValueError:
        raise ApiError("InvalidNextToken", "The NextToken value is not valid.") from None
    most = int(given.get("MaxRecords") or most)
    return found[first : first + most], {"NextToken": str(first + most)} if len(found) > first + most else {}
