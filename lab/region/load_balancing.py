"""Load balancer targets are registered, probed, drained and forgotten as by Elastic Load Balancing.

ministack's targets are keyed by their id alone, are healthy at once and for ever, may be anything, and go without draining;
a target group in use can be deleted, a TCP group is probed by HTTP, a template's attributes replace the defaults, and Auto
Scaling registers nobody. Made true: RegisterTargets, DeregisterTargets, DescribeTargetHealth, deletion, the defaults of
network target groups, and that the instances of a group with TargetGroupARNs are registered while they are in service.

A target's address and port are really dialled. Time runs faster: FACTOR. Load balancers themselves carry no traffic.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.fleet import wire
from lab.fleet.wire import Answer, ApiError
from lab.region import cloud_formation

if TYPE_CHECKING:
    from lab.fleet.timers import Timers
    from lab.region.region import Region

FACTOR = 60
"""A minute of a health check's interval or of a deregistration delay is a second here. Thresholds are counts and stay."""
PROBE_EVERY_S = 0.5
"""Shortest time in seconds between two probes of a target, and how often an unused one is looked at."""
PROBE_S = 2.0
"""Longest time in seconds that a probe may take; a group's own time-out where that is shorter."""
GROUP_TYPE = "AWS::ElasticLoadBalancingV2::TargetGroup"
NETWORK_PROTOCOLS = ("TCP", "TLS", "UDP", "TCP_UDP")

DESCRIPTIONS = {
    "Elb.RegistrationInProgress": "Target registration is in progress",
    "Elb.InitialHealthChecking": "Initial health checks in progress",
    "Target.DeregistrationInProgress": "Target deregistration is in progress",
    "Target.FailedHealthChecks": "Health checks failed",
    "Target.InvalidState": "Target is in the terminated state",
    "Target.NotInUse": "Target group is not configured to receive traffic from the load balancer",
    "Target.NotRegistered": "Target is not registered to the target group",
    "Target.ResponseCodeMismatch": "Health checks failed with these codes",
    "Target.Timeout": "Request timed out",
}
Key = tuple[str, int]


@dataclass
class Target:
    """One registration. A later one of the same id and port is another object."""

    id: str
    port: int
    state: str = "initial"
    reason: str = "Elb.RegistrationInProgress"
    draining: bool = False
    passed: int = field(default=0, repr=False)
    failed: int = field(default=0, repr=False)


class LoadBalancing:
    """The targets of a region's target groups. Methods may be called from any thread; errors are ApiError."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._lock = threading.RLock()
        self._targets: dict[str, dict[Key, Target]] = {}

    def register(self, arn: str, given: Sequence[Mapping[str, Any]]) -> None:
        """RegisterTargets: all of them or none. What is registered stays as it is; what drains begins anew."""
        group = _group(arn)
        _check(group, given)
        with self._lock:
            targets = self._targets.setdefault(arn, {})
            for key in _keys(group, given):
                if key not in targets or targets[key].draining:
                    target = targets[key] = Target(*key)
                    self._look_after(0, arn, target)

    def deregister(self, arn: str, given: Sequence[Mapping[str, Any]]) -> None:
        """DeregisterTargets: draining for the group's delay, then gone. What is not registered is passed over, as on AWS."""
        group = _group(arn)
        delay_s = int(_attributes(arn).get("deregistration_delay.timeout_seconds", 300)) / FACTOR if in_use(arn) else 0.0
        with self._lock:
            for key in _keys(group, given):
                target = self._targets.get(arn, {}).get(key)
                if target is None or target.draining:
                    continue
                target.draining = True
                if delay_s:
                    self._timers.after(delay_s, lambda target=target: self._drop(arn, target))  # type: ignore[misc]
                else:
                    self._drop(arn, target)

    def health(self, arn: str, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """DescribeTargetHealth: of all registered targets, or of those that are asked for."""
        group = _group(arn)
        with self._lock:
            targets = dict(self._targets.get(arn, {}))
            if not given:
                return [_shown(group, target) for target in targets.values()]
            return [
                _shown(group, targets[key]) if key in targets else _description(group, *key, "unused", "Target.NotRegistered")
                for key in _keys(group, given)
            ]

    def forget(self, arn: str) -> None:
        """A target group that is to be deleted; refused while a listener forwards to it."""
        if in_use(arn):
            raise ApiError("ResourceInUse", f"Target group '{arn}' is currently in use by a listener or a rule")
        with self._lock:
            self._targets.pop(arn, None)

    def follow(self, arns: Sequence[str], instance_id: str, serves: bool) -> None:
        """Auto Scaling says that an instance of a group with these target groups came into service, or left it."""
        for arn in arns:
            with contextlib.suppress(ApiError):  # a group that is gone, an instance that has just died: Auto Scaling goes on
                (self.register if serves else self.deregister)(arn, [{"Id": instance_id}])

    # -- health checks -------------------------------------------------------------------------------------------------

    def _drop(self, arn: str, target: Target) -> None:
        with self._lock:
            targets = self._targets.get(arn, {})
            if targets.get((target.id, target.port)) is target:
                del targets[target.id, target.port]

    def _look_after(self, delay_s: float, arn: str, target: Target) -> None:
        def look() -> None:
            with self._lock:
                if target.draining or self._targets.get(arn, {}).get((target.id, target.port)) is not target:
                    return
                group = _groups().get(arn)
                address = _address(group, target) if group else None
                if group is None or address is None or not in_use(arn):
                    target.state, target.reason, target.passed, target.failed = "initial", "Elb.RegistrationInProgress", 0, 0
                    self._look_after(PROBE_EVERY_S, arn, target)
                    return
            threading.Thread(target=self._probe, args=(arn, group, target, address), name="target-probe", daemon=True).start()

        self._timers.after(delay_s, look)

    def _probe(self, arn: str, group: Mapping[str, Any], target: Target, address: str) -> None:
        failure = probe(group, address, _checked_port(group, target.port))
        with self._lock:
            target.passed, target.failed = (0, target.failed + 1) if failure else (target.passed + 1, 0)
            if target.passed >= group["HealthyThresholdCount"]:
                target.state, target.reason = "healthy", ""
            elif target.failed >= group["UnhealthyThresholdCount"]:
                target.state, target.reason = "unhealthy", str(failure)
            elif target.state == "initial":
                target.reason = "Elb.InitialHealthChecking"
        self._look_after(max(PROBE_EVERY_S, group["HealthCheckIntervalSeconds"] / FACTOR), arn, target)


def apply(region: Region) -> None:
    """Put the actions in place of ministack's, and have the region's Auto Scaling groups register their instances."""
    from ministack.services import alb
    from ministack.services.cloudformation import provisioners

    balancing = LoadBalancing(region.timers)  # type: ignore[attr-defined]
    region.load_balancing = balancing  # type: ignore[attr-defined]
    region.groups.on_service = balancing.follow  # type: ignore[attr-defined]

    for name, handler in HANDLERS.items():
        alb._ACTION_MAP[name] = _bound(balancing, name, handler)
    create, delete = alb._ACTION_MAP["CreateTargetGroup"], alb._ACTION_MAP["DeleteTargetGroup"]

    def create_group(parameters: Mapping[str, Any]) -> Answer:
        answer: Answer = create(parameters)
        if answer[0] == 200:
            made = next(group for group in _groups().values() if group["TargetGroupName"] == alb._p(parameters, "Name"))
            _complete(
                made, {"HealthCheckProtocol": alb._p(parameters, "HealthCheckProtocol"), "Matcher": alb._p(parameters, "Matcher.HttpCode")}
            )
            return alb._xml(200, "CreateTargetGroup", f"<TargetGroups>{alb._tg_xml(made)}</TargetGroups>")  # type: ignore[no-any-return]
        return answer

    def delete_group(parameters: Mapping[str, Any]) -> Answer:
        try:
            balancing.forget(alb._p(parameters, "TargetGroupArn"))
        except ApiError as error:
            return wire.error_answer("elbv2", error)
        return delete(parameters)  # type: ignore[no-any-return]

    alb._ACTION_MAP["CreateTargetGroup"], alb._ACTION_MAP["DeleteTargetGroup"] = create_group, delete_group
    table = provisioners._RESOURCE_HANDLERS
    table[GROUP_TYPE] = _template_entry(balancing, dict(table[GROUP_TYPE]))


def _template_entry(balancing: LoadBalancing, entry: dict[str, Any]) -> dict[str, Any]:
    delete = entry["delete"]

    def finish(arn: str, attributes: dict[str, Any], props: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        _complete(_group(arn), props)
        return arn, attributes

    def delete_group(arn: str, props: dict[str, Any]) -> None:
        try:
            balancing.forget(arn)
        except ApiError as error:
            raise cloud_formation.ResourceFailed(str(error)) from None
        delete(arn, props)

    return {**cloud_formation._wrapped(entry, finish), "delete": delete_group}


# -- actions -------------------------------------------------------------------------------------------------------------


def _register(balancing: LoadBalancing, given: Mapping[str, Any]) -> Mapping[str, Any]:
    balancing.register(given["TargetGroupArn"], given["Targets"])
    return {}


def _deregister(balancing: LoadBalancing, given: Mapping[str, Any]) -> Mapping[str, Any]:
    balancing.deregister(given["TargetGroupArn"], given["Targets"])
    return {}


def _health(balancing: LoadBalancing, given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"TargetHealthDescriptions": balancing.health(given["TargetGroupArn"], given.get("Targets") or [])}


Handler = Callable[[LoadBalancing, Mapping[str, Any]], Mapping[str, Any]]
HANDLERS: dict[str, Handler] = {"RegisterTargets": _register, "DeregisterTargets": _deregister, "DescribeTargetHealth": _health}


def _bound(balancing: LoadBalancing, name: str, handler: Handler) -> Callable[[Mapping[str, Any]], Answer]:
    operation = wire.service_model("elbv2").operation_model(name)

    def handle(parameters: Mapping[str, Any]) -> Answer:
        try:
            return wire.answer(operation, handler(balancing, wire.parse(operation, wire.flat(b"", parameters))))
        except ApiError as error:
            return wire.error_answer("elbv2", error)

    return handle


# -- target groups -------------------------------------------------------------------------------------------------------


def _groups() -> Any:
    from ministack.services import alb

    return alb._tgs


def _group(arn: str) -> dict[str, Any]:
    found: dict[str, Any] | None = _groups().get(arn)
    if found is None:
        raise ApiError("TargetGroupNotFound", f"Target groups '{arn}' not found")
    return found


def in_use(arn: str) -> bool:
    """Whether a listener of a load balancer that is there forwards to the target group."""
    from ministack.services import alb

    listeners = {key: one for key, one in list(alb._listeners.items()) if one["LoadBalancerArn"] in alb._lbs}
    actions = [action for one in listeners.values() for action in one["DefaultActions"]]
    actions += [action for rule in list(alb._rules.values()) if rule["ListenerArn"] in listeners for action in rule["Actions"]]
    return any(action.get("TargetGroupArn") == arn for action in actions)


def _attributes(arn: str) -> dict[str, str]:
    from ministack.services import alb

    return {one["Key"]: str(one["Value"]) for one in alb._tg_attrs.get(arn) or []}


def _complete(group: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Give a group what AWS defaults and ministack does not: a network group's health check, and every attribute."""
    from ministack.services import alb

    attributes = {"deregistration_delay.timeout_seconds": "300", "stickiness.enabled": "false"}
    if group["Protocol"] in NETWORK_PROTOCOLS:
        if not given.get("HealthCheckProtocol"):
            group["HealthCheckProtocol"] = "TCP"
        if not given.get("Matcher"):
            group["Matcher"] = {"HttpCode": "200-399"}
        keeps = group["TargetType"] == "instance" or "UDP" in group["Protocol"]
        attributes |= {
            "stickiness.type": "source_ip", "proxy_protocol_v2.enabled": "false", "preserve_client_ip.enabled": str(keeps).lower(),
            "deregistration_delay.connection_termination.enabled": "false",
        }  # fmt: skip
        own = {key: value for key, value in _attributes(group["TargetGroupArn"]).items() if value != "lb_cookie"}
    else:
        attributes |= {"stickiness.type": "lb_cookie", "load_balancing.algorithm.type": "round_robin"}
        own = _attributes(group["TargetGroupArn"])
    alb._tg_attrs[group["TargetGroupArn"]] = [{"Key": key, "Value": value} for key, value in {**attributes, **own}.items()]


# -- targets -------------------------------------------------------------------------------------------------------------


def _keys(group: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> list[Key]:
    return [(one["Id"], int(one.get("Port") or group["Port"])) for one in given]


def _check(group: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what AWS refuses to register."""
    for one in given:
        if group["TargetType"] == "instance":
            record = _instance(one["Id"])
            if record is None:
                raise ApiError("InvalidTarget", f"The instance ID '{one['Id']}' is not valid")
            if record["State"]["Name"] != "running":
                raise ApiError("InvalidTarget", f"The following targets are not in a running state and cannot be registered: '{one['Id']}'")
            if group["VpcId"] and record["VpcId"] != group["VpcId"]:
                raise ApiError("InvalidTarget", f"The following targets are not in the target group VPC '{group['VpcId']}': '{one['Id']}'")
        elif group["TargetType"] == "ip":
            try:
                address = ipaddress.IPv4Address(one["Id"])
            except ValueError:
                raise ApiError("ValidationError", f"The IP address '{one['Id']}' is not a valid IPv4 address") from None
            if not one.get("AvailabilityZone") and not any(address in network for network in _ranges(group["VpcId"])):
                raise ApiError(
                    "ValidationError", f"The Availability Zone is required for IP address '{address}' because it is not in the VPC"
                )
        else:
            raise ApiError("ValidationError", f"the lab has no targets of type {group['TargetType']}")


def _ranges(vpc_id: str) -> list[ipaddress.IPv4Network]:
    """What AWS compares with: the VPC's subnets, not its own range."""
    from ministack.services import ec2

    return [ipaddress.IPv4Network(one["CidrBlock"]) for one in list(ec2._subnets.values()) if one["VpcId"] == vpc_id]


def _instance(instance_id: str) -> dict[str, Any] | None:
    from ministack.services import ec2

    found: dict[str, Any] | None = ec2._instances.get(instance_id)
    return found


def _address(group: Mapping[str, Any], target: Target) -> str | None:
    """Where a target is dialled; None for an instance that does not run."""
    if group["TargetType"] == "ip":
        return target.id
    record = _instance(target.id)
    return str(record["PrivateIpAddress"]) if record is not None and record["State"]["Name"] == "running" else None


def _checked_port(group: Mapping[str, Any], port: int) -> int:
    return port if group["HealthCheckPort"] == "traffic-port" else int(group["HealthCheckPort"])


def _shown(group: Mapping[str, Any], target: Target) -> dict[str, Any]:
    state, reason = target.state, target.reason
    if target.draining:
        state, reason = "draining", "Target.DeregistrationInProgress"
    elif not in_use(group["TargetGroupArn"]):
        state, reason = "unused", "Target.NotInUse"
    elif _address(group, target) is None:
        state, reason = "unused", "Target.InvalidState"
    return _description(group, target.id, target.port, state, reason)


def _description(group: Mapping[str, Any], target_id: str, port: int, state: str, reason: str) -> dict[str, Any]:
    health = {"State": state} | ({"Reason": reason, "Description": DESCRIPTIONS[reason]} if reason else {})
    shown = {"Id": target_id, "Port": port}
    return {"Target": shown, "HealthCheckPort": str(_checked_port(group, port)), "TargetHealth": health}


def probe(group: Mapping[str, Any], address: str, port: int) -> str | None:
    """Dial a target as its group says; None, or the reason why it is not well."""
    timeout_s = min(PROBE_S, float(group["HealthCheckTimeoutSeconds"]))
    protocol = group["HealthCheckProtocol"]
    try:
        if protocol not in ("HTTP", "HTTPS"):
            socket.create_connection((address, port), timeout_s).close()
            return None
        connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(address, port, timeout=timeout_s, context=_any_certificate())
            if protocol == "HTTPS"
            else http.client.HTTPConnection(address, port, timeout=timeout_s)
        )
        with contextlib.closing(connection):
            connection.request("GET", group["HealthCheckPath"] or "/", headers={"User-Agent": "ELB-HealthChecker/2.0"})
            status = connection.getresponse().status
        return None if _matches(status, group["Matcher"]["HttpCode"]) else "Target.ResponseCodeMismatch"
    except TimeoutError:
        return "Target.Timeout"
    except (OSError, http.client.HTTPException):
        return "Target.FailedHealthChecks"


def _any_certificate() -> ssl.SSLContext:
    """Load balancers do not verify the certificates of their targets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _matches(status: int, codes: str) -> bool:
    for part in codes.split(","):
        low, _, high = part.strip().partition("-")
        if int(low) <= status <= int(high or low):
            return True
    return False
