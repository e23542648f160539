"""What every resource must have, on the template as written and on the one behind the SAM transform."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from autojoin.domain.lifecycle import LAUNCH_TRANSITION, Hook, hook_of_ours
from tests.template.support import ROOT, functions, of_type, parse_template, raw, resolve, texts, translated

FUNCTIONS = of_type(translated(), "AWS::Lambda::Function")
MACHINES = of_type(translated(), "AWS::StepFunctions::StateMachine")
RULES = of_type(translated(), "AWS::Events::Rule")
QUEUES = of_type(translated(), "AWS::SQS::Queue")
ALARMS = of_type(translated(), "AWS::CloudWatch::Alarm")
LOG_GROUPS = of_type(translated(), "AWS::Logs::LogGroup")
EXAMPLES = sorted(f"examples/{p.name}" for p in (ROOT / "examples").glob("*.yaml"))


def attribute(logical_id: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [logical_id, "Arn"]}


# -- functions and machines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_is_traced_named_and_logs_to_a_group_with_retention(name: str) -> None:
    properties = FUNCTIONS[name]["Properties"]
    group = LOG_GROUPS[properties["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]

    assert properties["TracingConfig"] == {"Mode": "Active"}
    assert group["RetentionInDays"] == {"Ref": "LogRetentionDays"}
    assert resolve(group["LogGroupName"]) == f"/aws/lambda/{resolve(properties['FunctionName'])}"
    assert properties["Description"]


def test_every_function_has_a_role_of_its_own() -> None:
    roles = [json.dumps(f["Properties"]["Role"]) for f in (*FUNCTIONS.values(),)] + [
        json.dumps(m["Properties"]["RoleArn"]) for m in MACHINES.values()
    ]

    assert len(set(roles)) == len(FUNCTIONS) + len(MACHINES)


@pytest.mark.parametrize("name", sorted(functions()))
def test_a_function_is_named_after_its_boundary_and_told_which_it_is(name: str) -> None:
    properties = functions()[name]["Properties"]

    assert resolve(properties["FunctionName"]) == f"autojoin-{name}"
    assert properties["Environment"]["Variables"]["AUTOJOIN_BOUNDARY"] == name
    assert functions()[name]["Metadata"] == {"SkipBuild": True}


@pytest.mark.parametrize("name", sorted(functions()))
def test_a_functions_variables_are_settings_that_we_read(name: str) -> None:
    from autojoin.config import VARIABLES

    variables = {v for v in functions()[name]["Properties"]["Environment"]["Variables"] if v.startswith("AUTOJOIN_")}

    assert variables <= set(VARIABLES.values())


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_that_is_invoked_by_events_has_an_own_place_for_those_that_failed(name: str) -> None:
    invoked = any(target["Arn"] == attribute(name) for rule in RULES.values() for target in rule["Properties"]["Targets"])
    configs = [
        r["Properties"]
        for r in of_type(translated(), "AWS::Lambda::EventInvokeConfig").values()
        if r["Properties"]["FunctionName"] == {"Ref": name}
    ]

    assert len(configs) == int(invoked)
    for config in configs:
        assert config["DestinationConfig"]["OnFailure"]["Destination"] == attribute("FailedEventsQueue")


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_machine_is_standard_traced_and_logs_all_but_data(name: str) -> None:
    properties = MACHINES[name]["Properties"]
    (destination,) = properties["LoggingConfiguration"]["Destinations"]
    group = LOG_GROUPS[destination["CloudWatchLogsLogGroup"]["LogGroupArn"]["Fn::GetAtt"][0]]["Properties"]

    assert properties["StateMachineType"] == "STANDARD"
    assert properties["TracingConfiguration"] == {"Enabled": True}
    assert properties["LoggingConfiguration"]["Level"] == "ALL"
    assert properties["LoggingConfiguration"]["IncludeExecutionData"] is False
    assert resolve(group["LogGroupName"]).startswith("/aws/vendedlogs/")


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_machine_is_given_exactly_the_names_that_it_uses(name: str) -> None:
    source = (ROOT / MACHINES[name]["Properties"]["DefinitionS3Location"]["Key"]).read_text()

    assert set(re.findall(r"\$\{(\w+)\}", source)) == MACHINES[name]["Properties"]["DefinitionSubstitutions"].keys()


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_machine_may_invoke_exactly_the_functions_that_it_names(name: str) -> None:
    given = [v for v in MACHINES[name]["Properties"]["DefinitionSubstitutions"].values() if "Fn::GetAtt" in v]
    role = translated()["Resources"][MACHINES[name]["Properties"]["RoleArn"]["Fn::GetAtt"][0]]["Properties"]
    statements = [s for p in role["Policies"] for s in p["PolicyDocument"]["Statement"]]

    (invoke,) = [s for s in statements if s["Action"] == ["lambda:InvokeFunction"]]

    assert sorted(map(json.dumps, invoke["Resource"])) == sorted(map(json.dumps, given))


@pytest.mark.parametrize("name", sorted(LOG_GROUPS))
def test_every_log_group_has_retention(name: str) -> None:
    assert LOG_GROUPS[name]["Properties"]["RetentionInDays"] == {"Ref": "LogRetentionDays"}


def test_the_function_etcd_alone_is_in_the_vpc_and_only_where_subnets_are_given() -> None:
    inside = {name: f["Properties"]["VpcConfig"] for name, f in FUNCTIONS.items() if "VpcConfig" in f["Properties"]}

    assert inside == {
        "EtcdFunction": {
            "Fn::If": [
                "HasEtcdSubnets",
                {"SubnetIds": {"Ref": "EtcdSubnetIds"}, "SecurityGroupIds": {"Ref": "EtcdSecurityGroupIds"}},
                {"Ref": "AWS::NoValue"},
            ]
        }
    }
    assert raw()["Conditions"]["HasEtcdSubnets"] == {"Fn::Not": [{"Fn::Equals": [{"Fn::Join": ["", {"Ref": "EtcdSubnetIds"}]}, ""]}]}


# -- rules and queues ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_has_retries_and_a_queue_for_what_reached_nobody(name: str) -> None:
    (target,) = RULES[name]["Properties"]["Targets"]

    assert target["DeadLetterConfig"] == {"Arn": attribute("UndeliveredEventsQueue")}
    assert target["RetryPolicy"]["MaximumRetryAttempts"] > 0
    assert RULES[name]["Properties"]["State"] == "ENABLED"


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_may_invoke_its_function_and_no_other_rule_may_in_its_name(name: str) -> None:
    (target,) = RULES[name]["Properties"]["Targets"]
    permissions = [r["Properties"] for r in of_type(translated(), "AWS::Lambda::Permission").values()]

    mine = [p for p in permissions if p["SourceArn"] == attribute(name)]

    assert mine == [
        {
            "Action": "lambda:InvokeFunction",
            "FunctionName": {"Ref": target["Arn"]["Fn::GetAtt"][0]},
            "Principal": "events.amazonaws.com",
            "SourceArn": attribute(name),
        }
    ]


def test_there_is_no_permission_without_its_rule() -> None:
    sources = [p["Properties"]["SourceArn"]["Fn::GetAtt"][0] for p in of_type(translated(), "AWS::Lambda::Permission").values()]

    assert sorted(sources) == sorted(RULES)


def test_the_queue_of_undelivered_events_admits_exactly_our_rules() -> None:
    (policy,) = of_type(translated(), "AWS::SQS::QueuePolicy").values()
    (statement,) = policy["Properties"]["PolicyDocument"]["Statement"]

    assert policy["Properties"]["Queues"] == [{"Ref": "UndeliveredEventsQueue"}]
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    assert statement["Action"] == "sqs:SendMessage"
    assert statement["Resource"] == attribute("UndeliveredEventsQueue")
    admitted = statement["Condition"]["ArnEquals"]["aws:SourceArn"]
    assert sorted(map(json.dumps, admitted)) == sorted(json.dumps(attribute(r)) for r in RULES)


@pytest.mark.parametrize("name", sorted(QUEUES))
def test_a_queue_is_encrypted_kept_two_weeks_and_watched(name: str) -> None:
    watched = [
        a["Properties"]
        for a in ALARMS.values()
        if {"Fn::GetAtt": [name, "QueueName"]} in [d["Value"] for d in a["Properties"].get("Dimensions", [])]
    ]

    assert QUEUES[name]["Properties"]["SqsManagedSseEnabled"] is True
    assert QUEUES[name]["Properties"]["MessageRetentionPeriod"] == 14 * 24 * 3600
    assert [a["MetricName"] for a in watched] == ["ApproximateNumberOfMessagesVisible"]


# -- table, alarms, documents --------------------------------------------------------------------------------------------


def test_the_table_outlives_the_stack_and_can_be_restored() -> None:
    (table,) = of_type(translated(), "AWS::DynamoDB::Table").values()
    properties = table["Properties"]

    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert properties["SSESpecification"] == {"SSEEnabled": True}
    assert properties["BillingMode"] == "PAY_PER_REQUEST"


def test_an_existing_table_is_used_in_the_place_of_a_new_one() -> None:
    (table,) = of_type(raw(), "AWS::DynamoDB::Table").values()
    given = {
        json.dumps(f["Properties"]["Environment"]["Variables"]["AUTOJOIN_TABLE"], sort_keys=True)
        for f in functions().values()
        if "AUTOJOIN_TABLE" in f["Properties"]["Environment"]["Variables"]
    }

    assert table["Condition"] == "CreateTable"
    assert raw()["Conditions"]["CreateTable"] == {"Fn::Equals": [{"Ref": "ExistingTableName"}, ""]}
    assert [json.loads(g) for g in given] == [
        {"Fn::If": ["CreateTable", {"Fn::Sub": table["Properties"]["TableName"]["Fn::Sub"]}, {"Ref": "ExistingTableName"}]}
    ]


@pytest.mark.parametrize("name", sorted(ALARMS))
def test_an_alarm_knows_silence_from_failure_and_says_where_to_look(name: str) -> None:
    properties = ALARMS[name]["Properties"]

    assert properties["TreatMissingData"] == "notBreaching"
    assert "docs/runbook.md" in properties["AlarmDescription"]
    assert properties["AlarmActions"] == {"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}


def test_every_document_is_ours_by_name_and_updated_in_place() -> None:
    found = {resolve(d["Properties"]["Name"]): d["Properties"] for d in of_type(raw(), "AWS::SSM::Document").values()}

    assert found.keys() == {f"autojoin-{p.stem}" for p in (ROOT / "documents").glob("*.yaml")}
    for name, properties in found.items():
        location = properties["Content"]["Fn::Transform"]["Parameters"]["Location"]
        assert location == f"documents/{name.removeprefix('autojoin-')}.yaml"
        assert properties["UpdateMethod"] == "NewVersion"


# -- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["template.yaml", *EXAMPLES])
def test_no_account_region_or_partition_is_written_out(path: str) -> None:
    for text in texts(parse_template(path)):
        assert not re.search(r"(?<![\w.])\d{12}(?!\w)", text), text
        assert not re.search(r"\b(us|eu|ap|sa|ca|me|af|il|cn)-(gov-)?[a-z]+-\d\b", text), text
        assert not re.search(r"\barn:aws", text), text


@pytest.mark.parametrize("path", ["template.yaml", *EXAMPLES])
def test_every_parameter_says_what_it_is_and_takes_only_what_fits(path: str) -> None:
    for name, parameter in parse_template(path).get("Parameters", {}).items():
        assert parameter["Description"].endswith("."), name
        typed = parameter["Type"] not in ("String", "Number")
        assert typed or parameter.keys() & {"AllowedPattern", "AllowedValues", "MinValue"}, f"{path}: {name} takes anything"


@pytest.mark.parametrize("name", sorted(raw()["Parameters"]))
def test_every_parameter_of_the_stack_has_a_default_that_fits(name: str) -> None:
    parameter = raw()["Parameters"][name]

    assert "Default" in parameter
    if "AllowedPattern" in parameter:
        assert re.fullmatch(parameter["AllowedPattern"], parameter["Default"])
    if "AllowedValues" in parameter:
        assert parameter["Default"] in parameter["AllowedValues"]


@pytest.mark.parametrize("path", EXAMPLES)
def test_a_group_of_the_examples_is_one_that_autojoin_accepts(path: str) -> None:
    parsed = parse_template(path)
    assert not of_type(parsed, "AWS::AutoScaling::LifecycleHook"), "a hook of its own misses the first instances"
    for group in of_type(parsed, "AWS::AutoScaling::AutoScalingGroup").values():
        properties = group["Properties"]
        hooks = tuple(
            Hook(
                "g",
                h["LifecycleHookName"],
                h["LifecycleTransition"],
                parsed["Parameters"][h["HeartbeatTimeout"]["Ref"]]["Default"],
                None,
                h["NotificationMetadata"],
            )
            for h in properties["LifecycleHookSpecificationList"]
        )

        assert hook_of_ours("g", hooks).name == "autojoin-launching"
        assert {h["DefaultResult"] for h in properties["LifecycleHookSpecificationList"]} == {"ABANDON"}
        assert {h.transition for h in hooks} == {LAUNCH_TRANSITION}
        tags = {t["Key"]: t for t in properties["Tags"]}
        assert {"autojoin:cluster", "autojoin:role", "autojoin:partition"} <= tags.keys()
        assert all(t["PropagateAtLaunch"] for t in tags.values())
