"""The rules of Auto Scaling groups: capacity, lifecycle states, lifecycle hooks. No wire, no processes, no real clock.

What holds here, as on AWS:
* a launched instance goes Pending, Pending:Wait while hooks hold it, Pending:Proceed, InService; a leaving one Terminating,
  Terminating:Wait, Terminating:Proceed, Terminated;
* each hook of a transition opens an action with a token of its own; the first ABANDON ends the others; an action ends once:
  by its token (or by hook and instance), or by its heartbeat or global time-out with the hook's DefaultResult;
* a token of an ended action is answered "No active Lifecycle Action found with token …";
* ABANDON at launch terminates the instance and the group replaces it; ABANDON at termination lets it die, or keeps it as
  Terminating:Retained where the group's policy says so;
* an instance that dies by itself is held by no hook.
"""

from __future__ import annotations

import datetime
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lab.fleet.timers import Timer, Timers
from lab.fleet.wire import ApiError

LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"
RESULTS = ("CONTINUE", "ABANDON")
GLOBAL_LIMIT_S = 48 * 3600
HEARTBEATS = 100
"""A hook holds an instance at most 100 heartbeat time-outs, and at most 48 hours (AWS, "Lifecycle hooks", considerations)."""

PROCEED_S = 0.1
"""How long an instance stays in Pending:Proceed or Terminating:Proceed, in seconds; on AWS it is some seconds."""
REPLACEMENT_S = 1.0
"""Seconds from the end of an instance to the launch of its replacement. AWS slows launches when hooks fail; so do we, a little."""
LAUNCH_RETRY_S = 5.0
"""Seconds from a launch that the host refused to the next try."""

_HOOK_NAME = re.compile(r"[A-Za-z0-9\-_/]{1,255}")
_KEPT = (
    "LaunchTemplate", "DefaultCooldown", "AvailabilityZones", "TargetGroupARNs", "HealthCheckType", "HealthCheckGracePeriod",
    "VPCZoneIdentifier", "TerminationPolicies", "NewInstancesProtectedFromScaleIn", "CapacityRebalance", "ServiceLinkedRoleARN",
    "MaxInstanceLifetime", "DefaultInstanceWarmup", "InstanceMaintenancePolicy", "InstanceLifecyclePolicy", "TrafficSources",
    "LaunchConfigurationName", "DesiredCapacityType",
)  # fmt: skip
_REFUSED = ("MixedInstancesPolicy", "InstanceId", "LoadBalancerNames", "PlacementGroup", "CapacityReservationSpecification")


class LaunchFailed(Exception):
    """The host could not launch; the text says why."""


@dataclass
class Hook:
    """A lifecycle hook of a group."""

    name: str
    transition: str
    heartbeat_timeout_s: int = 3600
    default_result: str = "ABANDON"
    metadata: str | None = None
    role_arn: str | None = None
    target_arn: str | None = None

    @property
    def global_timeout_s(self) -> int:
        return min(GLOBAL_LIMIT_S, HEARTBEATS * self.heartbeat_timeout_s)


@dataclass
class LifecycleAction:
    """One instance held by one hook."""

    token: str
    hook: Hook
    opened_at: float
    deadline: float
    timer: Timer | None = None


@dataclass
class Member:
    """An instance in its group."""

    instance_id: str
    subnet_id: str
    zone: str
    instance_type: str
    image_id: str | None
    launch_template: dict[str, Any] | None
    state: str = ""
    health: str = "Healthy"
    protected: bool = False
    joined_at: float = 0.0
    actions: dict[str, LifecycleAction] = field(default_factory=dict)
    activity: dict[str, Any] | None = None

    @property
    def counts(self) -> bool:
        """Whether it counts towards the desired capacity."""
        return not self.state.startswith("Terminat")


@dataclass
class Group:
    """An Auto Scaling group."""

    name: str
    arn: str
    created_at: float
    min_size: int
    max_size: int
    desired: int
    settings: dict[str, Any]
    tags: list[dict[str, Any]] = field(default_factory=list)
    hooks: dict[str, Hook] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    suspended: set[str] = field(default_factory=set)
    activities: list[dict[str, Any]] = field(default_factory=list)
    deleting: bool = False
    launch_not_before: float = 0.0

    @property
    def subnets(self) -> list[str]:
        return [part.strip() for part in str(self.settings.get("VPCZoneIdentifier") or "").split(",") if part.strip()]

    @property
    def target_groups(self) -> list[str]:
        return list(self.settings.get("TargetGroupARNs") or [])

    @property
    def retains(self) -> bool:
        """Whether an instance whose terminate hook is abandoned is kept."""
        triggers = (self.settings.get("InstanceLifecyclePolicy") or {}).get("RetentionTriggers") or {}
        return str(triggers.get("TerminateHookAbandon", "terminate")) == "retain"


class Host(Protocol):
    """What launches and ends instances for the groups. Both calls return at once."""

    def launch(self, group: Group, subnet_id: str) -> Member:
        """A new instance in the subnet; raises LaunchFailed. It is reported by `Groups.running` when it runs."""
        ...

    def terminate(self, instance_id: str) -> None:
        """Begin to end the instance. It is reported by `Groups.gone` when it is terminated."""
        ...


Publish = Callable[[str, dict[str, Any], list[str]], None]
"""Called with detail-type, detail and resources of an event of source aws.autoscaling."""
Record = Callable[..., Any]


class Groups:
    """All groups of a region. Methods may be called from any thread; errors are ApiError as the API gives them."""

    def __init__(self, timers: Timers, host: Host, publish: Publish, record: Record, *, account: str, region: str) -> None:
        self._timers = timers
        self._host = host
        self._publish = publish
        self._record = record
        self._account, self._region = account, region
        self._lock = threading.RLock()
        self._groups: dict[str, Group] = {}
        self.proceed_s = PROCEED_S
        self.replacement_s = REPLACEMENT_S
        self.terminate_hooks_after_abandon = False
        """Whether an instance abandoned at launch is then held by the terminate hooks too."""
        self.on_tags: Callable[[str, list[dict[str, Any]] | None], None] = lambda name, tags: None
        """Told a group's tags whenever they change; None when the group is gone."""
        self.on_service: Callable[[Sequence[str], str, bool], None] = lambda arns, instance_id, serves: None
        """Told a group's target groups, an instance of it, and whether that is in service now or has ceased to be."""

    # -- groups ------------------------------------------------------------------------------------------------------

    def create(self, given: Mapping[str, Any]) -> Group:
        """CreateAutoScalingGroup: `given` is its input."""
        name = given["AutoScalingGroupName"]
        with self._lock:
            if name in self._groups:
                raise ApiError(
                    "AlreadyExists", f"AutoScalingGroup by this name already exists - A group with the name {name} already exists"
                )
            self._refuse(given)
            if not given.get("LaunchTemplate") and not given.get("LaunchConfigurationName"):
                raise ApiError(
                    "ValidationError",
                    "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or MixedInstancesPolicy "
                    "parameter.",
                )
            low, high = int(given["MinSize"]), int(given["MaxSize"])
            group = Group(
                name=name,
                arn=f"arn:aws:autoscaling:{self._region}:{self._account}:autoScalingGroup:{uuid.uuid4()}:autoScalingGroupName/{name}",
                created_at=self._timers.now(),
                min_size=low,
                max_size=high,
                desired=int(given.get("DesiredCapacity", low)),
                settings={key: given[key] for key in _KEPT if given.get(key) is not None},
            )
            _check_sizes(group)
            hooks = [self._hook(specification, None) for specification in given.get("LifecycleHookSpecificationList") or []]
            group.hooks = {hook.name: hook for hook in hooks}
            self._groups[name] = group
            self.put_tags([{**tag, "ResourceId": name} for tag in given.get("Tags") or []])
            self._reconcile(group, f"an AutoScalingGroup was created, with a desired capacity of {group.desired}")
            return group

    def update(self, name: str, given: Mapping[str, Any]) -> None:
        """UpdateAutoScalingGroup."""
        with self._lock:
            group = self.group(name)
            self._refuse(given)
            low = int(given.get("MinSize", group.min_size))
            high = int(given.get("MaxSize", group.max_size))
            desired = int(given.get("DesiredCapacity", min(max(group.desired, low), high)))
            changed = Group(name, group.arn, 0, low, high, desired, {})
            _check_sizes(changed)
            group.min_size, group.max_size, group.desired = low, high, desired
            group.settings.update({key: given[key] for key in _KEPT if given.get(key) is not None})
            self._reconcile(group, f"a user request updated the group, with a desired capacity of {group.desired}")

    def set_desired(self, name: str, desired: int) -> None:
        """SetDesiredCapacity."""
        with self._lock:
            group = self.group(name)
            if desired > group.max_size:
                raise ApiError(
                    "ValidationError",
                    f"New SetDesiredCapacity value {desired} is above max value {group.max_size} for the AutoScalingGroup.",
                )
            if desired < group.min_size:
                raise ApiError(
                    "ValidationError",
                    f"New SetDesiredCapacity value {desired} is below min value {group.min_size} for the AutoScalingGroup.",
                )
            before, group.desired = group.desired, desired
            self._reconcile(
                group,
                f"a user request explicitly set group desired capacity changing the desired capacity from {before} to {desired}",
            )

    def delete(self, name: str, force: bool) -> None:
        """DeleteAutoScalingGroup. Forced, the instances end without hooks and the group goes with the last one."""
        with self._lock:
            group = self.group(name)
            if group.members and not force:
                raise ApiError(
                    "ResourceInUse",
                    "You cannot delete an AutoScalingGroup while there are instances or pending scaling activities still in the group.",
                )
            group.deleting = True
            group.min_size = group.desired = 0
            for member in list(group.members.values()):
                self._terminate(group, member, "the group was force-deleted", hooks=False)
            self._forget_if_empty(group)

    def drain(self, name: str) -> None:
        """Delete the group the way CloudFormation does: no capacity any more, hooks honoured, gone when it is empty."""
        with self._lock:
            group = self._groups.get(name)
            if group is None:
                return
            group.deleting = True
            group.min_size = group.desired = 0
            for member in list(group.members.values()):
                if member.counts:
                    self._terminate(group, member, "the group's stack was deleted", hooks=True)
            self._forget_if_empty(group)

    def exists(self, name: str) -> bool:
        """Whether there is a group of that name, one that is being deleted included."""
        return name in self._groups

    def group(self, name: str) -> Group:
        """The group of that name or ARN; raises ValidationError."""
        with self._lock:
            group = self._groups.get(name.rsplit("autoScalingGroupName/", 1)[-1])
            if group is None:
                raise ApiError("ValidationError", f"AutoScalingGroup name not found - AutoScalingGroup: {name} not found")
            return group

    def groups(self, names: Sequence[str] = ()) -> list[Group]:
        """The groups with these names, all when none is given; unknown names are left out."""
        with self._lock:
            return [group for name, group in sorted(self._groups.items()) if not names or name in names or group.arn in names]

    def member(self, instance_id: str) -> tuple[Group, Member] | None:
        """The group and membership of an instance, or None."""
        with self._lock:
            for group in self._groups.values():
                if instance_id in group.members:
                    return group, group.members[instance_id]
            return None

    def reconcile(self) -> None:
        """Look at every group's capacity again."""
        with self._lock:
            for group in list(self._groups.values()):
                self._reconcile(group, "the group's capacity was looked at")

    # -- tags, processes, protection, target groups ------------------------------------------------------------------

    def put_tags(self, tags: Sequence[Mapping[str, Any]]) -> None:
        """CreateOrUpdateTags."""
        with self._lock:
            for tag in tags:
                group = self.group(tag["ResourceId"])
                if str(tag["Key"]).startswith("aws:") and not str(tag["Key"]).startswith("aws:cloudformation:"):
                    raise ApiError("ValidationError", f"Tag key {tag['Key']} is reserved: it begins with aws:")
                new = {
                    "ResourceId": group.name,
                    "ResourceType": "auto-scaling-group",
                    "Key": tag["Key"],
                    "Value": tag.get("Value", ""),
                    "PropagateAtLaunch": bool(tag.get("PropagateAtLaunch", False)),
                }
                group.tags = [*(old for old in group.tags if old["Key"] != new["Key"]), new]
                self.on_tags(group.name, group.tags)

    def delete_tags(self, tags: Sequence[Mapping[str, Any]]) -> None:
        """DeleteTags."""
        with self._lock:
            for tag in tags:
                group = self.group(tag["ResourceId"])
                group.tags = [old for old in group.tags if old["Key"] != tag["Key"] or ("Value" in tag and old["Value"] != tag["Value"])]
                self.on_tags(group.name, group.tags)

    def suspend(self, name: str, processes: Sequence[str]) -> None:
        """SuspendProcesses; all of them when none is given."""
        with self._lock:
            self.group(name).suspended |= set(_processes(processes))

    def resume(self, name: str, processes: Sequence[str]) -> None:
        """ResumeProcesses; all of them when none is given."""
        with self._lock:
            group = self.group(name)
            group.suspended -= set(_processes(processes))
            self._reconcile(group, "processes were resumed")

    def protect(self, name: str, instance_ids: Sequence[str], protected: bool) -> None:
        """SetInstanceProtection."""
        with self._lock:
            group = self.group(name)
            for instance_id in instance_ids:
                if instance_id not in group.members:
                    raise ApiError("ValidationError", f"The instance {instance_id} is not part of Auto Scaling group {name}.")
            for instance_id in instance_ids:
                group.members[instance_id].protected = protected

    def set_health(self, instance_id: str, status: str) -> None:
        """SetInstanceHealth: an Unhealthy instance is terminated, with its hooks, and replaced."""
        with self._lock:
            group, member = self._member(instance_id)
            member.health = status
            if status == "Unhealthy" and member.counts and "ReplaceUnhealthy" not in group.suspended:
                self._terminate(group, member, "an instance was taken out of service in response to a user health-check", hooks=True)
                self._replace_later(group)

    def attach_target_groups(self, name: str, arns: Sequence[str], attach: bool = True) -> None:
        """Attach- or DetachLoadBalancerTargetGroups: the instances in service are registered, or deregistered."""
        with self._lock:
            group = self.group(name)
            kept = [arn for arn in group.target_groups if arn not in arns]
            group.settings["TargetGroupARNs"] = [*kept, *arns] if attach else kept
            for member in group.members.values():
                if member.state == "InService" and not (attach and "AddToLoadBalancer" in group.suspended):
                    self.on_service(arns, member.instance_id, attach)

    # -- hooks -------------------------------------------------------------------------------------------------------

    def put_hook(self, name: str, given: Mapping[str, Any]) -> None:
        """PutLifecycleHook: create, or change what is given of an existing one. Open actions keep what they were opened with."""
        with self._lock:
            group = self.group(name)
            hook = self._hook(given, group.hooks.get(given["LifecycleHookName"]))
            if len(group.hooks) >= 50 and hook.name not in group.hooks:
                raise ApiError("LimitExceeded", "You have already reached a limit of 50 lifecycle hooks per Auto Scaling group")
            group.hooks[hook.name] = hook

    def delete_hook(self, name: str, hook_name: str) -> None:
        """DeleteLifecycleHook: what it holds goes on, ABANDON for launching and CONTINUE for terminating instances."""
        with self._lock:
            group = self.group(name)
            hook = group.hooks.pop(hook_name, None)
            if hook is None:
                raise ApiError("ValidationError", f"Lifecycle hook {hook_name} not found on group {name}.")
            for member in list(group.members.values()):
                action = member.actions.get(hook_name)
                if action:
                    self._end(
                        group,
                        member,
                        action,
                        "ABANDON" if hook.transition == LAUNCHING else "CONTINUE",
                        "timed_out",
                        "hook deleted",
                    )

    def complete(
        self, name: str, hook_name: str, result: str, *, token: str | None = None, instance_id: str | None = None, by: str = "root"
    ) -> None:
        """CompleteLifecycleAction by token, or by hook and instance."""
        if result not in RESULTS:
            raise ApiError("ValidationError", f"LifecycleActionResult is '{result}'; it must be CONTINUE or ABANDON")
        with self._lock:
            group, member, action = self._action(name, hook_name, token, instance_id, result, by)
            self._end(group, member, action, result, "completed", by)

    def heartbeat(self, name: str, hook_name: str, *, token: str | None = None, instance_id: str | None = None, by: str = "root") -> None:
        """RecordLifecycleActionHeartbeat: the heartbeat time-out starts anew; the global one does not."""
        with self._lock:
            group, member, action = self._action(name, hook_name, token, instance_id, None, by)
            self._arm(group, member, action)
            self._tell_hook(group, member, action, "heartbeat", None, by)

    # -- instances ---------------------------------------------------------------------------------------------------

    def terminate(self, instance_id: str, decrement: bool) -> tuple[Group, dict[str, Any]]:
        """TerminateInstanceInAutoScalingGroup; returns the group and the activity."""
        with self._lock:
            group, member = self._member(instance_id)
            if decrement and group.desired - 1 < group.min_size:
                raise ApiError(
                    "ValidationError",
                    f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without replacement will violate "
                    "group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower group's min size.",
                )
            if member.state == "Terminating:Retained":
                self._terminate(group, member, "a user request ended a retained instance", hooks=False)
            elif not member.counts:
                raise ApiError("ScalingActivityInProgress", f"Instance {instance_id} is already {member.state}")
            else:
                if decrement:
                    group.desired -= 1
                self._terminate(group, member, "an instance was taken out of service in response to a user request", hooks=True)
                if not decrement:
                    self._replace_later(group)
            return group, dict(member.activity or {})

    def running(self, instance_id: str) -> None:
        """The host reports that an instance runs: its launch hooks take it."""
        with self._lock:
            found = self.member(instance_id)
            if found and found[1].state == "Pending":
                self._hold(*found, LAUNCHING)

    def gone(self, instance_id: str) -> None:
        """The host reports that an instance is terminated, by us or by itself."""
        with self._lock:
            found = self.member(instance_id)
            if found is None:
                return
            group, member = found
            expected = member.state in ("Terminating", "Terminating:Proceed")
            for action in list(member.actions.values()):
                self._drop(member, action)
            if not expected:
                member.health = "Unhealthy"
                self._finish_activity(member, "Cancelled")
                member.activity = self._activity(
                    group,
                    member,
                    "Terminating",
                    "an instance was taken out of service in response to an EC2 health check indicating it has been terminated or stopped",
                )
            self._set(group, member, "Terminated")
            self._finish_activity(member, "Successful")
            self._publish_activity(group, member, "EC2 Instance Terminate Successful", "AutoScalingGroup", "EC2")
            del group.members[instance_id]
            if not self._forget_if_empty(group):
                self._replace_later(group)

    # -- inside (the lock is held) -------------------------------------------------------------------------------------

    @staticmethod
    def _refuse(given: Mapping[str, Any]) -> None:
        used = [name for name in _REFUSED if given.get(name)]
        if used:
            raise ApiError("ValidationError", f"the lab's groups do not have {', '.join(used)}")

    def _hook(self, given: Mapping[str, Any], old: Hook | None) -> Hook:
        name = given["LifecycleHookName"]
        transition = given.get("LifecycleTransition") or (old.transition if old else None)
        heartbeat_s = int(given.get("HeartbeatTimeout") or (old.heartbeat_timeout_s if old else 3600))
        default = given.get("DefaultResult") or (old.default_result if old else "ABANDON")
        if not _HOOK_NAME.fullmatch(name):
            raise ApiError("ValidationError", f"LifecycleHookName '{name}' does not match [A-Za-z0-9\\-_\\/]+")
        if transition not in (LAUNCHING, TERMINATING):
            raise ApiError("ValidationError", f"LifecycleTransition is '{transition}'; it must be {LAUNCHING} or {TERMINATING}")
        if not 30 <= heartbeat_s <= 7200:
            raise ApiError("ValidationError", f"HeartbeatTimeout is {heartbeat_s}; it must be from 30 to 7200 seconds")
        if default not in RESULTS:
            raise ApiError("ValidationError", f"DefaultResult is '{default}'; it must be CONTINUE or ABANDON")

        def kept(key: str, before: str | None) -> str | None:
            return given[key] if given.get(key) is not None else before

        return Hook(
            name, transition, heartbeat_s, default, kept("NotificationMetadata", old.metadata if old else None),
            kept("RoleARN", old.role_arn if old else None), kept("NotificationTargetARN", old.target_arn if old else None),
        )  # fmt: skip

    def _member(self, instance_id: str) -> tuple[Group, Member]:
        found = self.member(instance_id)
        if found is None:
            raise ApiError("ValidationError", f"Instance Id not found - No managed instance found for instance ID: {instance_id}")
        return found

    def _action(
        self, name: str, hook_name: str, token: str | None, instance_id: str | None, result: str | None, by: str
    ) -> tuple[Group, Member, LifecycleAction]:
        if not token and not instance_id:
            raise ApiError("ValidationError", "Either LifecycleActionToken or InstanceId must be given")
        group = self.group(name)
        for member in group.members.values():
            action = member.actions.get(hook_name)
            if action and (action.token == token if token else member.instance_id == instance_id):
                return group, member, action
        if token and len(token) != 36:
            raise ApiError(
                "ValidationError",
                "1 validation error detected: Value at 'lifecycleActionToken' failed to satisfy constraint: Member must have "
                "length equal to 36",
            )
        self._record(
            "hook", instance_id=instance_id, group=group.name, hook=hook_name, token=token, event="refused", result=result, by=by,
            deadline=None,
        )  # fmt: skip
        what = f"token {token}" if token else f"instance ID {instance_id}"
        raise ApiError("ValidationError", f"No active Lifecycle Action found with {what}")

    def _reconcile(self, group: Group, cause: str) -> None:
        counting = [member for member in group.members.values() if member.counts]
        missing = group.desired - len(counting)
        if missing > 0 and not group.deleting and "Launch" not in group.suspended:
            if self._timers.now() < group.launch_not_before:
                return
            for _ in range(missing):
                if not self._launch(group, cause):
                    break
        elif missing < 0 and "Terminate" not in group.suspended:
            for member in _victims(counting, -missing):
                self._terminate(group, member, cause, hooks=True)

    def _replace_later(self, group: Group, delay_s: float | None = None) -> None:
        delay_s = self.replacement_s if delay_s is None else delay_s
        group.launch_not_before = max(group.launch_not_before, self._timers.now() + delay_s)

        def look() -> None:
            with self._lock:
                if self._groups.get(group.name) is group:
                    self._reconcile(group, "an instance was started in response to a difference between desired and actual capacity")

        self._timers.after(group.launch_not_before - self._timers.now() + 0.001, look)

    def _launch(self, group: Group, cause: str) -> bool:
        subnets = group.subnets or [""]
        subnet = min(subnets, key=lambda one: (sum(m.subnet_id == one and m.counts for m in group.members.values()), subnets.index(one)))
        try:
            member = self._host.launch(group, subnet)
        except LaunchFailed as failure:
            activity = self._activity(group, None, "Launching a new EC2 instance", cause)
            activity.update(StatusCode="Failed", StatusMessage=str(failure), EndTime=_when(self._timers.now()), Progress=100)
            self._publish(
                "EC2 Instance Launch Unsuccessful",
                self._activity_detail(group, activity, "", "EC2", "AutoScalingGroup"),
                [group.arn],
            )
            self._replace_later(group, LAUNCH_RETRY_S)
            return False
        member.joined_at = self._timers.now()
        member.protected = bool(group.settings.get("NewInstancesProtectedFromScaleIn"))
        group.members[member.instance_id] = member
        member.activity = self._activity(group, member, "Launching a new", cause)
        self._set(group, member, "Pending")
        return True

    def _hold(self, group: Group, member: Member, transition: str) -> None:
        hooks = [hook for hook in group.hooks.values() if hook.transition == transition]
        launching = transition == LAUNCHING
        if not hooks:
            self._proceed(group, member, launching)
            return
        self._set(group, member, "Pending:Wait" if launching else "Terminating:Wait", hooks[0].name)
        if member.activity:
            member.activity["StatusCode"] = "MidLifecycleAction"
        for hook in hooks:
            now = self._timers.now()
            action = LifecycleAction(str(uuid.uuid4()), hook, now, now)
            member.actions[hook.name] = action
            self._arm(group, member, action)
            self._tell_hook(group, member, action, "opened", None, None)
            detail = {
                "LifecycleActionToken": action.token,
                "AutoScalingGroupName": group.name,
                "LifecycleHookName": hook.name,
                "EC2InstanceId": member.instance_id,
                "LifecycleTransition": hook.transition,
                **({"NotificationMetadata": hook.metadata} if hook.metadata is not None else {}),
                "Origin": "EC2" if launching else "AutoScalingGroup",
                "Destination": "AutoScalingGroup" if launching else "EC2",
            }
            self._publish(f"EC2 Instance-{'launch' if launching else 'terminate'} Lifecycle Action", detail, [group.arn])

    def _arm(self, group: Group, member: Member, action: LifecycleAction) -> None:
        if action.timer:
            action.timer.cancel()
        now = self._timers.now()
        action.deadline = min(now + action.hook.heartbeat_timeout_s, action.opened_at + action.hook.global_timeout_s)
        armed_for = action.deadline

        def over() -> None:
            with self._lock:
                if member.actions.get(action.hook.name) is action and action.deadline == armed_for:
                    self._end(group, member, action, action.hook.default_result, "timed_out", "timer")

        action.timer = self._timers.after(action.deadline - now, over)

    def _drop(self, member: Member, action: LifecycleAction) -> None:
        if action.timer:
            action.timer.cancel()
        member.actions.pop(action.hook.name, None)

    def _end(self, group: Group, member: Member, action: LifecycleAction, result: str, event: str, by: str) -> None:
        self._drop(member, action)
        self._tell_hook(group, member, action, event, result, by)
        launching = action.hook.transition == LAUNCHING
        if result == "ABANDON":
            for other in list(member.actions.values()):
                self._drop(member, other)
                self._tell_hook(group, member, other, "timed_out", "ABANDON", "another hook's ABANDON")
            if launching:
                self._abandon_launch(group, member)
            elif group.retains:
                self._set(group, member, "Terminating:Retained")
                self._finish_activity(member, "Cancelled")
                self._replace_later(group)
            else:
                self._proceed(group, member, False)
        elif not member.actions:
            self._proceed(group, member, launching)

    def _proceed(self, group: Group, member: Member, launching: bool) -> None:
        state = "Pending:Proceed" if launching else "Terminating:Proceed"
        self._set(group, member, state)

        def go_on() -> None:
            with self._lock:
                if group.members.get(member.instance_id) is not member or member.state != state:
                    return
                if launching:
                    self._set(group, member, "InService")
                    self._finish_activity(member, "Successful")
                    self._publish_activity(group, member, "EC2 Instance Launch Successful", "EC2", "AutoScalingGroup")
                else:
                    self._host.terminate(member.instance_id)

        self._timers.after(self.proceed_s, go_on)

    def _abandon_launch(self, group: Group, member: Member) -> None:
        self._finish_activity(member, "Cancelled", "Instance failed to complete user's Lifecycle Action: ABANDON")
        self._publish_activity(group, member, "EC2 Instance Launch Unsuccessful", "EC2", "AutoScalingGroup")
        self._terminate(group, member, "an instance's launch was abandoned by a lifecycle hook", hooks=self.terminate_hooks_after_abandon)
        self._replace_later(group)

    def _terminate(self, group: Group, member: Member, cause: str, *, hooks: bool) -> None:
        for action in list(member.actions.values()):
            self._drop(member, action)
            self._tell_hook(group, member, action, "timed_out", "ABANDON", "the instance is taken out")
        if member.activity and not member.activity.get("EndTime"):
            self._finish_activity(member, "Cancelled")
        member.activity = self._activity(group, member, "Terminating", cause)
        self._set(group, member, "Terminating")
        if hooks:
            self._hold(group, member, TERMINATING)
        else:
            self._host.terminate(member.instance_id)

    def _forget_if_empty(self, group: Group) -> bool:
        if not group.deleting or group.members:
            return False
        self._groups.pop(group.name, None)
        self.on_tags(group.name, None)
        return True

    def _set(self, group: Group, member: Member, state: str, hook: str | None = None) -> None:
        before, member.state = member.state, state
        if before == "InService" or (state == "InService" and "AddToLoadBalancer" not in group.suspended):
            self.on_service(group.target_groups, member.instance_id, state == "InService")
        self._record("lifecycle", instance_id=member.instance_id, group=group.name, state=state, hook=hook)

    def _tell_hook(self, group: Group, member: Member, action: LifecycleAction, event: str, result: str | None, by: str | None) -> None:
        self._record(
            "hook", instance_id=member.instance_id, group=group.name, hook=action.hook.name, token=action.token, event=event,
            result=result, by=by, deadline=action.deadline,
        )  # fmt: skip

    def _activity(self, group: Group, member: Member | None, what: str, cause: str) -> dict[str, Any]:
        now = self._timers.now()
        subject = f"{what} EC2 instance: {member.instance_id}" if member else f"{what}.  Status Reason: see the message"
        activity: dict[str, Any] = {
            "ActivityId": str(uuid.uuid4()),
            "AutoScalingGroupName": group.name,
            "AutoScalingGroupARN": group.arn,
            "Description": subject,
            "Cause": f"At {_when(now):%Y-%m-%dT%H:%M:%SZ} {cause}.",
            "StartTime": _when(now),
            "StatusCode": "InProgress",
            "Progress": 50,
            "Details": '{"Subnet ID":"%s","Availability Zone":"%s"}' % ((member.subnet_id, member.zone) if member else ("", "")),
        }
        group.activities.insert(0, activity)
        del group.activities[500:]
        return activity

    def _finish_activity(self, member: Member, status: str, message: str | None = None) -> None:
        if member.activity and not member.activity.get("EndTime"):
            member.activity.update(StatusCode=status, EndTime=_when(self._timers.now()), Progress=100)
            if message:
                member.activity["StatusMessage"] = message

    def _publish_activity(self, group: Group, member: Member, detail_type: str, origin: str, destination: str) -> None:
        detail = self._activity_detail(group, member.activity or {}, member.instance_id, origin, destination)
        instance = f"arn:aws:ec2:{self._region}:{self._account}:instance/{member.instance_id}"
        detail["Details"] = {"Availability Zone": member.zone, "Subnet ID": member.subnet_id}
        self._publish(detail_type, detail, [group.arn, instance])

    def _activity_detail(
        self, group: Group, activity: Mapping[str, Any], instance_id: str, origin: str, destination: str
    ) -> dict[str, Any]:
        def iso(key: str) -> str:
            at = activity.get(key) or _when(self._timers.now())
            return f"{at:%Y-%m-%dT%H:%M:%S.}{at.microsecond // 1000:03d}Z"

        return {
            "StatusCode": {"Successful": "InProgress"}.get(str(activity.get("StatusCode")), str(activity.get("StatusCode"))),
            "Description": activity.get("Description", ""),
            "AutoScalingGroupName": group.name,
            "ActivityId": activity.get("ActivityId", ""),
            "Details": {},
            "RequestId": activity.get("ActivityId", ""),
            "StatusMessage": activity.get("StatusMessage", ""),
            "EndTime": iso("EndTime"),
            "EC2InstanceId": instance_id,
            "StartTime": iso("StartTime"),
            "Cause": activity.get("Cause", ""),
            "Origin": origin,
            "Destination": destination,
        }


def _check_sizes(group: Group) -> None:
    if not 0 <= group.min_size <= group.max_size:
        raise ApiError("ValidationError", f"Max bound, {group.max_size}, must be greater than or equal to min bound, {group.min_size}")
    if not group.min_size <= group.desired <= group.max_size:
        raise ApiError(
            "ValidationError",
            f"Desired capacity:{group.desired} must be between the specified min size:{group.min_size} and max size:{group.max_size}",
        )


PROCESSES = (
    "Launch", "Terminate", "AddToLoadBalancer", "AlarmNotification", "AZRebalance", "HealthCheck", "InstanceRefresh",
    "ReplaceUnhealthy", "ScheduledActions",
)  # fmt: skip


def _processes(asked: Sequence[str]) -> Sequence[str]:
    unknown = [process for process in asked if process not in PROCESSES]
    if unknown:
        raise ApiError("ValidationError", f"Invalid process name(s): {', '.join(unknown)}")
    return asked or PROCESSES


def _victims(members: Sequence[Member], count: int) -> list[Member]:
    """Who leaves on scale-in: unprotected ones, from the zone with most, the oldest first."""
    left = [member for member in members if not member.protected]
    chosen: list[Member] = []
    while left and len(chosen) < count:
        zones = [member.zone for member in left]
        victim = min(left, key=lambda member: (-zones.count(member.zone), member.joined_at))
        left.remove(victim)
        chosen.append(victim)
    return chosen


def _when(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
