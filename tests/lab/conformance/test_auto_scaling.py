"""Auto Scaling groups by boto3 and by CloudFormation, with real instances of the fleet behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.region.region import Region
from tests.lab.fleet.world import World
from tests.lab.fleet.world import world as make_world

pytestmark = pytest.mark.lab

LAUNCH = {
    "LifecycleHookName": "launch", "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING", "HeartbeatTimeout": 300,
    "DefaultResult": "ABANDON", "NotificationMetadata": '{"autojoin":1}',
}  # fmt: skip
END = {"LifecycleHookName": "end", "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "HeartbeatTimeout": 300}


@pytest.fixture(scope="module")
def world(region: Region, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(region, tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture(scope="module")
def events(world: World) -> Any:
    """The bodies of all events of the fleet's services, from a queue behind a rule."""
    sqs, rules = world.region.client("sqs"), world.region.client("events")
    url = sqs.create_queue(QueueName=f"events-{world.tag}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    statement = {"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": arn}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})})
    rules.put_rule(Name=f"all-{world.tag}", EventPattern=json.dumps({"source": ["aws.autoscaling", "aws.ec2", "aws.ssm"]}))
    rules.put_targets(Rule=f"all-{world.tag}", Targets=[{"Id": "q", "Arn": arn}])
    seen: list[dict[str, Any]] = []

    def look() -> list[dict[str, Any]]:
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                seen.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return seen

    return look


def refused(call: Any, **given: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**given)
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


def complete(world: World, group: str, instance_id: str, result: str) -> None:
    world.asg.complete_lifecycle_action(
        AutoScalingGroupName=group, LifecycleHookName="launch", LifecycleActionToken=world.opened(instance_id)["token"],
        LifecycleActionResult=result,
    )  # fmt: skip


def test_a_hook_given_with_the_group_holds_its_first_instance_until_it_is_continued(world: World, events: Any) -> None:
    group = world.group("held", hooks=[LAUNCH], desired=1)

    instance_id = world.member_in(group, "Pending:Wait")
    event = world.until(lambda: [e for e in events() if e["detail"].get("EC2InstanceId") == instance_id])[0]
    complete(world, group, instance_id, "CONTINUE")
    world.member_in(group, "InService")

    arn = world.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]["AutoScalingGroupARN"]
    assert event["source"] == "aws.autoscaling"
    assert event["detail-type"] == "EC2 Instance-launch Lifecycle Action"
    assert event["resources"] == [arn]
    assert event["detail"] == {
        "LifecycleActionToken": world.opened(instance_id)["token"], "AutoScalingGroupName": group, "LifecycleHookName": "launch",
        "EC2InstanceId": instance_id, "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "NotificationMetadata": '{"autojoin":1}', "Origin": "EC2", "Destination": "AutoScalingGroup",
    }  # fmt: skip
    succeeded = world.until(
        lambda: [e for e in events() if e["detail-type"] == "EC2 Instance Launch Successful" and instance_id in str(e["resources"])]
    )
    assert succeeded[0]["detail"]["Details"] == {"Availability Zone": "us-east-1a", "Subnet ID": world.subnets[0]}


def test_a_second_completion_is_refused_with_aws_words(world: World) -> None:
    group = world.group("twice", hooks=[LAUNCH], desired=1)
    instance_id = world.member_in(group, "Pending:Wait")
    complete(world, group, instance_id, "CONTINUE")

    said = refused(
        world.asg.complete_lifecycle_action, AutoScalingGroupName=group, LifecycleHookName="launch",
        LifecycleActionToken=world.opened(instance_id)["token"], LifecycleActionResult="CONTINUE",
    )  # fmt: skip

    assert said == f"ValidationError: No active Lifecycle Action found with token {world.opened(instance_id)['token']}"


def test_abandon_ends_the_instance_and_another_one_comes(world: World) -> None:
    group = world.group("abandon", hooks=[LAUNCH], desired=1)
    first = world.member_in(group, "Pending:Wait")

    complete(world, group, first, "ABANDON")
    second = world.until(lambda: [one["InstanceId"] for one in world.members(group) if one["InstanceId"] != first])[0]

    world.until(lambda: world.fleet.instances[first].state == "terminated")
    assert world.member_in(group, "Pending:Wait") == second
    assert world.fleet.instances[first].lifecycle_state == "Terminated"
    activities = world.asg.describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
    assert [a["StatusCode"] for a in activities if f"Launching a new EC2 instance: {first}" in a["Description"]] == ["Cancelled"]


def test_heartbeats_by_token_move_the_deadline(world: World) -> None:
    group = world.group("beat", hooks=[LAUNCH], desired=1)
    instance_id = world.member_in(group, "Pending:Wait")
    opened = world.opened(instance_id)

    world.asg.record_lifecycle_action_heartbeat(
        AutoScalingGroupName=group, LifecycleHookName="launch", LifecycleActionToken=opened["token"]
    )

    beat = [e for e in world.region.journal.entries("hook") if e["instance_id"] == instance_id and e["event"] == "heartbeat"]
    assert beat[0]["deadline"] > opened["deadline"]
    assert "No active Lifecycle Action found" in refused(
        world.asg.record_lifecycle_action_heartbeat,
        AutoScalingGroupName=group,
        LifecycleHookName="launch",
        LifecycleActionToken="0" * 36,
    )


def test_scale_in_goes_through_the_terminate_hook(world: World, events: Any) -> None:
    group = world.group("leave", hooks=[END], desired=1)
    instance_id = world.member_in(group, "InService")

    world.asg.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    world.member_in(group, "Terminating:Wait")
    alive = world.fleet.instances[instance_id].state
    event = world.until(
        lambda: [e for e in events() if e["detail"].get("EC2InstanceId") == instance_id and "terminate" in e["detail-type"]]
    )[0]
    world.asg.complete_lifecycle_action(
        AutoScalingGroupName=group, LifecycleHookName="end", InstanceId=instance_id, LifecycleActionResult="CONTINUE"
    )
    world.until(lambda: not world.members(group))

    assert alive == "running"
    assert (event["detail"]["Origin"], event["detail"]["Destination"]) == ("AutoScalingGroup", "EC2")
    states = [e["detail"]["state"] for e in events() if e["detail"].get("instance-id") == instance_id and e["source"] == "aws.ec2"]
    assert states == ["pending", "running", "shutting-down", "terminated"]


def test_one_instance_is_terminated_through_its_group(world: World) -> None:
    group = world.group("single", desired=1)
    instance_id = world.member_in(group, "InService")

    activity = world.asg.terminate_instance_in_auto_scaling_group(InstanceId=instance_id, ShouldDecrementDesiredCapacity=True)["Activity"]
    world.until(lambda: not world.members(group))

    assert activity["Description"] == f"Terminating EC2 instance: {instance_id}"
    assert world.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]["DesiredCapacity"] == 0


def test_an_instance_whose_power_fails_is_replaced_and_held_by_no_hook(world: World) -> None:
    group = world.group("power", hooks=[END], desired=1)
    first = world.member_in(group, "InService")

    world.fleet.kill(first)
    second = world.until(lambda: [one["InstanceId"] for one in world.members(group) if one["InstanceId"] != first])[0]

    assert [e["event"] for e in world.region.journal.entries("hook") if e["instance_id"] == first] == []
    world.until(lambda: world.fleet.instances[second].lifecycle_state == "InService")


def test_suspended_launching_leaves_a_gap(world: World) -> None:
    group = world.group("gap", desired=0)
    world.asg.suspend_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])

    world.asg.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    shown = world.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]
    world.asg.resume_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])

    assert (shown["DesiredCapacity"], shown["Instances"]) == (1, [])
    assert [p["ProcessName"] for p in shown["SuspendedProcesses"]] == ["Launch"]
    world.member_in(group, "InService")


def test_tags_of_the_group_and_of_its_instances(world: World) -> None:
    group = world.group("tags", desired=1)
    instance_id = world.member_in(group, "InService")
    world.asg.create_or_update_tags(
        Tags=[{"ResourceId": group, "ResourceType": "auto-scaling-group", "Key": "late", "Value": "1", "PropagateAtLaunch": True}]
    )

    by_filter = world.asg.describe_tags(Filters=[{"Name": "auto-scaling-group", "Values": [group]}])["Tags"]
    instance = world.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]

    assert {tag["Key"]: tag["PropagateAtLaunch"] for tag in by_filter} == {"team": True, "own": False, "late": True}
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"] if not tag["Key"].startswith("aws:ec2launchtemplate")}
    assert tags == {"from": "template", "team": "a", "aws:autoscaling:groupName": group}


def test_hooks_show_their_global_time_out(world: World) -> None:
    group = world.group("hooks", hooks=[LAUNCH])
    world.asg.put_lifecycle_hook(AutoScalingGroupName=group, **END)

    shown = world.asg.describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"]

    assert [(h["LifecycleHookName"], h["HeartbeatTimeout"], h["GlobalTimeout"], h["DefaultResult"]) for h in shown] == [
        ("end", 300, 30000, "ABANDON"), ("launch", 300, 30000, "ABANDON"),
    ]  # fmt: skip


def test_unknown_things_are_refused(world: World) -> None:
    group = world.group("strict")

    assert "AutoScalingGroup name not found" in refused(world.asg.set_desired_capacity, AutoScalingGroupName="nobody", DesiredCapacity=1)
    assert "launch template" in refused(
        world.asg.create_auto_scaling_group,
        AutoScalingGroupName="x",
        MinSize=0,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateName": "nobody"},
    )
    assert refused(world.asg.put_warm_pool, AutoScalingGroupName=group).startswith("InvalidAction")
    assert world.asg.describe_auto_scaling_instances(InstanceIds=["i-00000000000000bad"])["AutoScalingInstances"] == []
    assert "above max value" in refused(world.asg.set_desired_capacity, AutoScalingGroupName=group, DesiredCapacity=6)


def template(world: World, desired: int, heartbeat_s: int, tag: str) -> str:
    return json.dumps(
        {
            "Resources": {
                "Template": {
                    "Type": "AWS::EC2::LaunchTemplate",
                    "Properties": {
                        "LaunchTemplateData": {
                            "ImageId": "ami-1", "InstanceType": "m5.large", "IamInstanceProfile": {"Name": world.profile},
                            "MetadataOptions": {"HttpTokens": "required"},
                        }
                    },
                },
                "Group": {
                    "Type": "AWS::AutoScaling::AutoScalingGroup",
                    "Properties": {
                        "MinSize": "0", "MaxSize": "3", "DesiredCapacity": str(desired), "VPCZoneIdentifier": [world.subnets[1]],
                        "LaunchTemplate": {
                            "LaunchTemplateId": {"Ref": "Template"}, "Version": {"Fn::GetAtt": ["Template", "LatestVersionNumber"]},
                        },
                        "LifecycleHookSpecificationList": [{**LAUNCH, "HeartbeatTimeout": heartbeat_s}],
                        "Tags": [{"Key": "team", "Value": tag, "PropagateAtLaunch": True}],
                    },
                },
            },
            "Outputs": {"Name": {"Value": {"Ref": "Group"}}},
        }
    )  # fmt: skip


def test_a_group_of_a_template_is_created_updated_and_deleted_with_its_hooks(world: World) -> None:
    cloud_formation, stack = world.region.client("cloudformation"), f"groups-{world.tag}"
    cloud_formation.create_stack(StackName=stack, TemplateBody=template(world, 1, 300, "a"))
    group = world.until(lambda: cloud_formation.describe_stacks(StackName=stack)["Stacks"][0].get("Outputs"))[0]["OutputValue"]

    instance_id = world.member_in(group, "Pending:Wait")
    complete(world, group, instance_id, "CONTINUE")
    world.member_in(group, "InService")
    cloud_formation.update_stack(StackName=stack, TemplateBody=template(world, 1, 600, "b"))
    world.until(lambda: cloud_formation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"] == "UPDATE_COMPLETE")
    hooks = world.asg.describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"]
    shown = world.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]
    cloud_formation.delete_stack(StackName=stack)
    world.until(lambda: not world.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"])

    assert hooks[0]["HeartbeatTimeout"] == 600
    assert [(tag["Key"], tag["Value"]) for tag in shown["Tags"] if not tag["Key"].startswith("aws:")] == [("team", "b")]
    assert shown["Instances"][0]["AvailabilityZone"] == "us-east-1b"
    world.until(lambda: world.fleet.instances[instance_id].state == "terminated")
