"""Targets and their health: lab/region/load_balancing.py, with real listeners on real addresses."""

from __future__ import annotations

import http.server
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.observer import leftovers
from lab.observer.invariants import Evidence, deletes_only_what_is_ours
from lab.region.region import Region
from tests.lab.conformance.conftest import eventually
from tests.lab.fleet.world import World
from tests.lab.fleet.world import world as make_world

pytestmark = pytest.mark.lab
_serial = itertools.count()


@pytest.fixture(scope="module")
def world(region: Region, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(region, tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture(scope="module")
def elb(region: Region) -> Any:
    return region.client("elbv2")


@pytest.fixture(scope="module")
def node(world: World) -> str:
    return world.run_instance()


@pytest.fixture
def group(world: World, elb: Any) -> Callable[..., str]:
    """A network target group on port 8080, with a listener unless `used` is False."""

    def make(*, used: bool = True, delay_s: int = 60, **more: Any) -> str:
        name = f"t{next(_serial)}-{world.tag}"
        given = {"Name": name, "Protocol": "TCP", "Port": 8080, "VpcId": world.vpc_id, "TargetType": "instance"}
        arn: str = elb.create_target_group(**{**given, **more})["TargetGroups"][0]["TargetGroupArn"]
        delay = {"Key": "deregistration_delay.timeout_seconds", "Value": str(delay_s)}
        elb.modify_target_group_attributes(TargetGroupArn=arn, Attributes=[delay])
        if used:
            listen(world, elb, arn)
        return arn

    return make


def listen(world: World, elb: Any, group: str) -> str:
    """A listener on a balancer of its own that forwards to the group."""
    name = f"b{next(_serial)}-{world.tag}"
    balancer = elb.create_load_balancer(Name=name, Type="network", Scheme="internal", Subnets=world.subnets)["LoadBalancers"][0]
    action = {"Type": "forward", "TargetGroupArn": group}
    listener = elb.create_listener(LoadBalancerArn=balancer["LoadBalancerArn"], Protocol="TCP", Port=8080, DefaultActions=[action])
    return str(listener["Listeners"][0]["ListenerArn"])


def health(elb: Any, group: str, *targets: dict[str, Any]) -> list[tuple[str, int, str, str | None]]:
    """Id, port, state and reason of the group's targets."""
    shown = elb.describe_target_health(TargetGroupArn=group, **({"Targets": list(targets)} if targets else {}))
    return [
        (one["Target"]["Id"], one["Target"]["Port"], one["TargetHealth"]["State"], one["TargetHealth"].get("Reason"))
        for one in shown["TargetHealthDescriptions"]
    ]


def states(elb: Any, group: str) -> list[str]:
    return [state for _, _, state, _ in health(elb, group)]


def refused(call: Any, **given: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**given)
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


@contextmanager
def serving(address: str, port: int = 8080, status: int = 200) -> Iterator[list[str]]:
    """Something that answers every request on an address; yields the paths it was asked for."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer((address, port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def address_of(world: World, instance_id: str) -> str:
    return world.fleet.instances[instance_id].address


class TestRegistration:
    def test_a_target_is_its_id_and_its_port(self, elb: Any, group: Callable[..., str], node: str) -> None:
        arn = group(used=False)

        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": node}, {"Id": node, "Port": 6443}, {"Id": node, "Port": 8080}])
        elb.deregister_targets(TargetGroupArn=arn, Targets=[{"Id": node, "Port": 6443}])

        assert health(elb, arn) == [(node, 8080, "unused", "Target.NotInUse")]

    def test_an_instance_must_run_in_the_groups_network(self, world: World, elb: Any, group: Callable[..., str], node: str) -> None:
        elsewhere = group(used=False, VpcId=world.ec2.create_vpc(CidrBlock="127.199.0.0/16")["Vpc"]["VpcId"])
        ended = world.run_instance()
        world.fleet.kill(ended)

        def register(arn: str, target: str) -> str:
            return refused(elb.register_targets, TargetGroupArn=arn, Targets=[{"Id": target}])

        arn = group(used=False)
        assert register(arn, "i-0123456789abcdef0").startswith("InvalidTarget")
        assert register(elsewhere, node).startswith("InvalidTarget: The following targets are not in the target group VPC")
        assert register(arn, ended) == (
            f"InvalidTarget: The following targets are not in a running state and cannot be registered: '{ended}'"
        )
        assert register(arn.replace("targetgroup/t", "targetgroup/x"), node).startswith("TargetGroupNotFound")
        assert health(elb, arn) == []

    def test_an_address_must_be_in_the_groups_network(self, world: World, elb: Any, group: Callable[..., str], node: str) -> None:
        arn = group(used=False, TargetType="ip")

        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": address_of(world, node)}])

        outside = {"TargetGroupArn": arn, "Targets": [{"Id": address_of(world, node)}, {"Id": "10.9.8.7"}]}
        assert refused(elb.register_targets, **outside) == (
            "ValidationError: The Availability Zone is required for IP address '10.9.8.7' because it is not in the VPC"
        )
        assert refused(elb.register_targets, TargetGroupArn=arn, Targets=[{"Id": node}]).startswith("ValidationError")
        assert [one[0] for one in health(elb, arn)] == [address_of(world, node)]

    def test_what_is_not_registered_is_told_and_its_deregistration_accepted(self, elb: Any, group: Callable[..., str], node: str) -> None:
        arn = group()

        elb.deregister_targets(TargetGroupArn=arn, Targets=[{"Id": node}])

        assert health(elb, arn) == []
        assert health(elb, arn, {"Id": node}) == [(node, 8080, "unused", "Target.NotRegistered")]


class TestHealth:
    def test_a_target_that_answers_is_healthy_within_two_seconds(
        self, world: World, elb: Any, group: Callable[..., str], node: str
    ) -> None:
        arn = group()
        with serving(address_of(world, node)):
            elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": node}])
            began, first = time.monotonic(), health(elb, arn)
            eventually(lambda: states(elb, arn) == ["healthy"])

        assert first[0][2] == "initial"
        assert time.monotonic() - began < 6  # five probes, half a second apart: about 2 s, more where the machine is busy

    def test_a_target_that_stops_answering_is_unhealthy_and_comes_back(
        self, world: World, elb: Any, group: Callable[..., str], node: str
    ) -> None:
        arn = group(TargetType="ip", HealthyThresholdCount=2)
        with serving(address_of(world, node)):
            elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": address_of(world, node)}])
            eventually(lambda: states(elb, arn) == ["healthy"])
        eventually(lambda: health(elb, arn)[0][2:] == ("unhealthy", "Target.FailedHealthChecks"))
        with serving(address_of(world, node)):
            eventually(lambda: states(elb, arn) == ["healthy"])

    @pytest.mark.parametrize(("status", "expected"), [(200, "healthy"), (301, "healthy"), (503, "unhealthy")])
    def test_http_is_asked_for_the_path_and_judged_by_its_code(
        self, world: World, elb: Any, group: Callable[..., str], node: str, status: int, expected: str
    ) -> None:
        arn = group(HealthCheckProtocol="HTTP", HealthCheckPath="/readyz", HealthCheckPort="8081", HealthyThresholdCount=2)
        with serving(address_of(world, node), 8081, status) as paths:
            elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": node}])
            eventually(lambda: states(elb, arn) == [expected])

        assert set(paths) == {"/readyz"}

    def test_a_group_that_nobody_forwards_to_is_unused_until_somebody_does(
        self, world: World, elb: Any, group: Callable[..., str], node: str
    ) -> None:
        arn = group(used=False, HealthyThresholdCount=2)
        with serving(address_of(world, node)):
            elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": node}])
            before = health(elb, arn)
            listener = listen(world, elb, arn)
            eventually(lambda: states(elb, arn) == ["healthy"])
            elb.delete_listener(ListenerArn=listener)

            assert before == [(node, 8080, "unused", "Target.NotInUse")]
            assert states(elb, arn) == ["unused"]

    def test_the_target_of_a_terminated_instance_is_unused(self, world: World, elb: Any, group: Callable[..., str]) -> None:
        instance_id = world.run_instance()
        arn = group()
        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": instance_id}])

        world.fleet.kill(instance_id)

        assert health(elb, arn) == [(instance_id, 8080, "unused", "Target.InvalidState")]
        assert {"group": arn.split("/")[1], "id": instance_id, "port": 8080} in leftovers.targets(world.region)


class TestDraining:
    def test_a_target_drains_for_the_groups_delay_and_is_gone(self, world: World, elb: Any, group: Callable[..., str], node: str) -> None:
        arn = group(delay_s=90)  # 1.5 s
        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": node}])

        elb.deregister_targets(TargetGroupArn=arn, Targets=[{"Id": node}])

        assert health(elb, arn) == [(node, 8080, "draining", "Target.DeregistrationInProgress")]
        assert {"group": arn.split("/")[1], "id": node, "port": 8080} not in leftovers.targets(world.region)
        eventually(lambda: health(elb, arn) == [], 5)
        assert health(elb, arn, {"Id": node}) == [(node, 8080, "unused", "Target.NotRegistered")]

    def test_a_draining_target_that_is_registered_begins_anew(self, elb: Any, group: Callable[..., str], node: str) -> None:
        arn = group(delay_s=60)
        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": node}])
        elb.deregister_targets(TargetGroupArn=arn, Targets=[{"Id": node}])

        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": node}])
        time.sleep(1.3)

        assert states(elb, arn) in (["initial"], ["unhealthy"])


class TestDeletion:
    def test_a_group_in_use_is_not_deleted(self, world: World, elb: Any, group: Callable[..., str]) -> None:
        arn = group(used=False)
        listener = listen(world, elb, arn)

        answer = refused(elb.delete_target_group, TargetGroupArn=arn)
        elb.delete_listener(ListenerArn=listener)
        elb.delete_target_group(TargetGroupArn=arn)

        assert answer == f"ResourceInUse: Target group '{arn}' is currently in use by a listener or a rule"
        assert refused(elb.describe_target_health, TargetGroupArn=arn).startswith("TargetGroupNotFound")


class TestAutoScaling:
    def test_instances_in_service_are_registered_by_their_group(self, world: World, elb: Any, group: Callable[..., str]) -> None:
        arn, later = group(delay_s=30), group(delay_s=30)
        hook = {"LifecycleHookName": "launch", "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING", "HeartbeatTimeout": 300}
        name = world.group("served", hooks=[hook], desired=1, TargetGroupARNs=[arn])
        instance_id = world.member_in(name, "Pending:Wait")
        before = health(elb, arn)

        world.asg.complete_lifecycle_action(
            AutoScalingGroupName=name, LifecycleHookName="launch", LifecycleActionResult="CONTINUE", InstanceId=instance_id
        )
        eventually(lambda: [one[:2] for one in health(elb, arn)] == [(instance_id, 8080)])
        world.asg.attach_load_balancer_target_groups(AutoScalingGroupName=name, TargetGroupARNs=[later])
        shown = world.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"][0]
        attached = world.asg.describe_load_balancer_target_groups(AutoScalingGroupName=name)["LoadBalancerTargetGroups"]
        registered = health(elb, later)
        world.asg.detach_load_balancer_target_groups(AutoScalingGroupName=name, TargetGroupARNs=[later])
        detached = health(elb, later)
        world.asg.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)

        assert before == []
        assert shown["TargetGroupARNs"] == [arn, later]
        assert [one["LoadBalancerTargetGroupARN"] for one in attached] == [arn, later]
        assert [one[0] for one in registered] == [instance_id]
        assert [one[2] for one in detached] == ["draining"]
        assert states(elb, arn) == ["draining"]
        eventually(lambda: health(elb, arn) == [])

    def test_a_group_takes_target_groups_of_instances_that_exist(self, world: World, group: Callable[..., str]) -> None:
        name, words = world.group("unserved"), "ValidationError: Provided Target Groups may not be valid"
        call = world.asg.attach_load_balancer_target_groups

        assert refused(call, AutoScalingGroupName=name, TargetGroupARNs=[group(used=False, TargetType="ip")]).startswith(words)
        assert refused(call, AutoScalingGroupName=name, TargetGroupARNs=[group(used=False) + "0"]).startswith(words)


def template(world: World, delay_s: int) -> str:
    attributes = {"preserve_client_ip.enabled": "false", "deregistration_delay.timeout_seconds": str(delay_s)}
    return json.dumps(
        {
            "Resources": {
                "Balancer": {
                    "Type": "AWS::ElasticLoadBalancingV2::LoadBalancer",
                    "Properties": {"Type": "network", "Scheme": "internal", "Subnets": world.subnets},
                },
                "Targets": {
                    "Type": "AWS::ElasticLoadBalancingV2::TargetGroup",
                    "Properties": {
                        "Protocol": "TCP", "Port": 6443, "VpcId": world.vpc_id, "TargetType": "ip", "HealthCheckIntervalSeconds": 10,
                        "TargetGroupAttributes": [{"Key": key, "Value": value} for key, value in attributes.items()],
                        "Tags": [{"Key": "autojoin:cluster", "Value": "demo"}],
                    },
                },
                "Listener": {
                    "Type": "AWS::ElasticLoadBalancingV2::Listener",
                    "Properties": {
                        "LoadBalancerArn": {"Ref": "Balancer"}, "Port": 6443, "Protocol": "TCP",
                        "DefaultActions": [{"Type": "forward", "TargetGroupArn": {"Ref": "Targets"}}],
                    },
                },
            },
            "Outputs": {"Targets": {"Value": {"Ref": "Targets"}}, "Name": {"Value": {"Fn::GetAtt": ["Balancer", "DNSName"]}}},
        }
    )  # fmt: skip


def test_a_balancer_of_a_template_is_created_updated_used_and_deleted(world: World, elb: Any, node: str) -> None:
    cloud_formation, stack = world.region.client("cloudformation"), f"balancer-{world.tag}"

    def settle(status: str) -> dict[str, str]:
        eventually(lambda: cloud_formation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"] == status)
        shown = cloud_formation.describe_stacks(StackName=stack)["Stacks"][0].get("Outputs") or []
        return {one["OutputKey"]: one["OutputValue"] for one in shown}

    cloud_formation.create_stack(StackName=stack, TemplateBody=template(world, 300))
    arn = settle("CREATE_COMPLETE")["Targets"]
    with serving(address_of(world, node), 6443):
        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": address_of(world, node)}])
        eventually(lambda: states(elb, arn) == ["healthy"])
    cloud_formation.update_stack(StackName=stack, TemplateBody=template(world, 60))
    updated = settle("UPDATE_COMPLETE")["Targets"]
    shown = elb.describe_target_groups(TargetGroupArns=[arn])["TargetGroups"][0]
    attributes = {one["Key"]: one["Value"] for one in elb.describe_target_group_attributes(TargetGroupArn=arn)["Attributes"]}
    registered = health(elb, arn)
    cloud_formation.delete_stack(StackName=stack)

    assert updated == arn
    assert (shown["HealthCheckProtocol"], shown["Matcher"]["HttpCode"], shown["HealthCheckIntervalSeconds"]) == ("TCP", "200-399", 10)
    assert attributes["deregistration_delay.timeout_seconds"] == "60"
    assert attributes["preserve_client_ip.enabled"] == "false"
    assert attributes["proxy_protocol_v2.enabled"] == "false"
    assert [one[:2] for one in registered] == [(address_of(world, node), 6443)]
    eventually(lambda: arn not in [one["TargetGroupArn"] for one in elb.describe_target_groups()["TargetGroups"]])


def test_registrations_are_journalled_with_their_ports_and_judged(world: World, elb: Any, group: Callable[..., str], node: str) -> None:
    arn = group(used=False, TargetType="ip")
    targets = [{"Id": address_of(world, node)}, {"Id": address_of(world, node), "Port": 6443}]

    elb.register_targets(TargetGroupArn=arn, Targets=targets)
    elb.deregister_targets(TargetGroupArn=arn, Targets=targets)

    def told_of() -> list[dict[str, Any]]:
        calls = world.region.journal.entries("api_call")
        return [one for one in calls if one["detail"].get("TargetGroupArn") == arn and "targets" in one["detail"]]

    eventually(lambda: len(told_of()) == 2)  # a call is journalled when its answer is out
    calls, address = told_of(), address_of(world, node)
    assert [one["operation"] for one in calls] == ["RegisterTargets", "DeregisterTargets"]
    assert [one["detail"]["targets"] for one in calls] == [[f"{address}:8080", f"{address}:6443"]] * 2
    role = "arn:aws:sts::000000000000:assumed-role/names/names"
    told = [one for one in world.region.journal.entries("instance") if one["instance_id"] == node]
    broken = deletes_only_what_is_ours(Evidence([*told, {**calls[1], "principal": role}]))
    assert broken == [f"DeregisterTargets by {role} deleted {address} of {node}, which serves"] * 2
