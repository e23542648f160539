"""Events and asynchronous invocations are delivered, retried and dead-lettered as on AWS.

ministack differs: a rule invokes a function once, without any permission, never again and never into a dead-letter
queue; what has no target is dropped; the policy of a queue and the role of a rule or schedule are never asked;
RetryPolicy and DeadLetterConfig are not modelled; an array index in an input path gives ""; an alias' on-failure
destination is not used; the age of an event does not count the waits that AWS makes.

Made true: a rule needs the function's permission, the queue's or topic's policy, or for a state machine its own role
with a trust for EventBridge; a schedule needs its role. Without permission or target an event goes to the target's
dead-letter queue at once, with AWS's message attributes, else it is retried within RetryPolicy. A function that raises
is tried twice more, then the event goes to its on-failure destination and dead-letter queue, if its role may send there.

Kept short: AWS waits one and then two minutes between the tries; here that takes seconds, but ages are counted as if it
had taken minutes, so an event that is too old on AWS is too old here.
"""

from __future__ import annotations

import contextvars
import json
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.region import authorisation

if TYPE_CHECKING:
    from lab.region.region import Region

Json = dict[str, Any]

FUNCTION_WAITS_S = (60.0, 120.0)
"""Seconds that AWS waits before the second and third try of an asynchronous invocation: Lambda guide, "Error handling"."""
HASTE = 60.0
"""How many times faster those waits pass here."""
FUNCTION_AGE_S = 21_600
RULE_AGE_S = 86_400
RULE_RETRIES = 185
THROTTLED_WAIT_S = 1.0
"""First wait in seconds before a throttled asynchronous invocation is tried again; doubles up to 30 s."""
FINAL = frozenset({"NO_PERMISSIONS", "NO_RESOURCE", "FAILED_TO_ASSUME_ROLE", "INVALID_JSON", "INVALID_PARAMETER"})
"""Failures that are not tried again: EventBridge guide, "Using dead-letter queues"."""
_PATH_PART = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]")


class NotDelivered(Exception):
    """A target refused an event; `code` is EventBridge's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Sender:
    """Who delivers: the service and the rule or schedule that it acts for."""

    service: str
    arn: str
    account: str
    role: str


def apply(region: Region) -> None:
    """Put this delivery in place of ministack's."""
    from ministack.services import eventbridge, lambda_svc

    delivery = Delivery(region)
    region.at_stop(delivery.stop)
    elsewhere = eventbridge._invoke_target

    def invoke_target(target: Json, event: Json, rule: Json, view: Any = None) -> None:
        delivery.start(target, event, rule, view, elsewhere)

    eventbridge._invoke_target = invoke_target
    eventbridge._apply_input_transformer = transformed
    lambda_svc.invoke_async_with_retry = delivery.invoke_asynchronously


class Delivery:
    """Deliveries under way, one thread each."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._over = threading.Event()

    def stop(self) -> None:
        """End every wait; what was not delivered is lost with the region."""
        self._over.set()

    # -- events --------------------------------------------------------------------------------------------------
    def start(self, target: Json, event: Json, rule: Json, view: Any, elsewhere: Callable[..., None]) -> None:
        """Deliver one event to one target of a rule or schedule, in a thread of its own."""
        from ministack.services import eventbridge

        arn = str(target.get("Arn", ""))
        deliver = {"lambda": self._to_function, "sqs": _to_queue, "sns": _to_topic, "states": _to_machine}.get(
            arn.split(":")[2] if arn.count(":") >= 5 else ""
        )
        if deliver is None:
            elsewhere(target, event, rule, view)
            return
        view = view or eventbridge._pattern_event_view(event)
        payload = payload_of(target, rule, view)
        whole = json.dumps(view.event_with_detail())
        sender = _sender(target, rule)
        self._in_thread(lambda: self._deliver(deliver, target, payload, whole, sender))

    def _deliver(self, deliver: Callable[[Json, str, Sender], None], target: Json, payload: str, whole: str, sender: Sender) -> None:
        policy = target.get("RetryPolicy") or {}
        retries = int(policy.get("MaximumRetryAttempts", RULE_RETRIES))
        age_s = float(policy.get("MaximumEventAgeInSeconds", RULE_AGE_S))
        began, tried = time.monotonic(), 0
        while True:
            try:
                deliver(target, payload, sender)
                return
            except NotDelivered as failure:
                exhausted = ""
                if failure.code not in FINAL:
                    wait_s = min(2.0**tried, 60.0) * random.uniform(0.5, 1.0)
                    if tried >= retries:
                        exhausted = "MaximumRetryAttempts"
                    elif time.monotonic() - began + wait_s > age_s:
                        exhausted = "MaximumEventAgeInSeconds"
                    else:
                        tried += 1
                        if self._over.wait(wait_s):
                            return
                        continue
                self._dead(target, whole, sender, failure, tried, exhausted)
                return

    def _dead(self, target: Json, whole: str, sender: Sender, failure: NotDelivered, tried: int, exhausted: str) -> None:
        from ministack.services import cloudwatch, sqs

        rule = {"RuleName": sender.arn.rpartition("/")[2]}
        cloudwatch.record_metric("AWS/Events", "FailedInvocations", 1, "Count", rule)
        queue = (target.get("DeadLetterConfig") or {}).get("Arn", "")
        if not queue:
            return
        if sender.service == "scheduler.amazonaws.com":
            allowed = authorisation.role_may(sender.role, "sqs:SendMessage", queue)
        else:
            allowed = sqs.queue_policy_allows(queue, sender.service, sender.arn, sender.account)
        if not allowed or sqs._queue_by_arn(queue) is None:
            cloudwatch.record_metric("AWS/Events", "InvocationsFailedToBeSentToDlq", 1, "Count", rule)
            return
        attributes = {
            "RULE_ARN": sender.arn, "TARGET_ARN": target["Arn"], "ERROR_CODE": failure.code,
            "ERROR_MESSAGE": failure.message, "RETRY_ATTEMPTS": str(tried), "EXHAUSTED_RETRY_CONDITION": exhausted,
        }  # fmt: skip
        send_to_queue(queue, whole, attributes)
        cloudwatch.record_metric("AWS/Events", "InvocationsSentToDlq", 1, "Count", rule)

    def _to_function(self, target: Json, payload: str, sender: Sender) -> None:
        from ministack.core import iam_evaluator
        from ministack.services import lambda_svc

        arn = str(target["Arn"])
        found, config, name = lambda_svc._get_func_record_for_ref(arn)
        if not found or not config:
            raise NotDelivered("NO_RESOURCE", f"Function not found: {arn}")
        if sender.service == "scheduler.amazonaws.com":
            _need_role(sender, "lambda:InvokeFunction", arn)
        else:
            asked = iam_evaluator.EvalContext(
                principal_arn="", principal_type="Service", principal_account=sender.account,
                action="lambda:InvokeFunction", resource_arn=arn, region=self._region.name,
                service_context={"aws:sourcearn": sender.arn, "aws:sourceaccount": sender.account},
            )  # fmt: skip
            policy = (lambda_svc._functions.get(config["FunctionName"]) or found).get("policy") or {}
            if iam_evaluator.evaluate_resource_policy(policy, asked, service=sender.service).decision != "Allow":
                raise NotDelivered("NO_PERMISSIONS", f"{sender.arn} is not allowed to invoke {arn}")
        self._region.journal.record(
            "api_call", service="lambda", operation="Invoke", principal=sender.arn, status=202, error=None,
            source="internal", detail={"FunctionName": name},
        )  # fmt: skip
        record = lambda_svc._execution_record_for_config(found, config)
        record["config"] = {**config, "FunctionArn": arn}
        self.invoke_asynchronously(record, json.loads(payload))

    # -- functions -----------------------------------------------------------------------------------------------
    def invoke_asynchronously(self, func: Json, event: Any) -> None:
        """Invoke a function as with InvocationType Event; returns at once."""
        self._in_thread(lambda: self._invoke(func, event))

    def _invoke(self, func: Json, event: Any) -> None:
        from ministack.services import lambda_svc

        config = func.get("config") or func
        settings = _invoke_config(config)
        retries = int(settings.get("MaximumRetryAttempts", len(FUNCTION_WAITS_S)))
        age_limit_s = float(settings.get("MaximumEventAgeInSeconds", FUNCTION_AGE_S))
        began, skipped_s, tries, throttled = time.monotonic(), 0.0, 0, 0
        while True:
            result = lambda_svc._execute_function(func, event)
            age_s = time.monotonic() - began + skipped_s
            if result.get("throttle"):
                throttled += 1
                wait_s = min(THROTTLED_WAIT_S * 2 ** (throttled - 1), 30.0)
                if age_s + wait_s > age_limit_s:
                    self._end(config, settings, event, result, tries, "EventAgeExceeded")
                    return
                if self._over.wait(wait_s):
                    return
                continue
            tries += 1
            if not result.get("error"):
                self._end(config, settings, event, result, tries, "Success")
                return
            if tries > retries:
                self._end(config, settings, event, result, tries, "RetriesExhausted")
                return
            wait_s = FUNCTION_WAITS_S[min(tries, len(FUNCTION_WAITS_S)) - 1]
            if age_s + wait_s > age_limit_s:
                self._end(config, settings, event, result, tries, "EventAgeExceeded")
                return
            skipped_s += wait_s * (1 - 1 / HASTE)
            if self._over.wait(wait_s / HASTE):
                return

    def _end(self, config: Json, settings: Json, event: Any, result: Json, tries: int, condition: str) -> None:
        destinations = settings.get("DestinationConfig") or {}
        chosen = "OnSuccess" if condition == "Success" else "OnFailure"
        arn = (destinations.get(chosen) or {}).get("Destination", "")
        version = config.get("Version", "$LATEST")
        body = result.get("body")
        response: Json = {"statusCode": 200, "executedVersion": version}
        if condition != "Success":
            response["functionError"] = "Unhandled"
        record = {
            "version": "1.0",
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "requestContext": {
                "requestId": body.get("requestId", "") if isinstance(body, dict) else "",
                "functionArn": f"{_plain_arn(config)}:{version}",
                "condition": condition,
                "approximateInvokeCount": tries,
            },
            "requestPayload": event,
            "responseContext": response,
            "responsePayload": body,
        }
        if arn:
            self._to_destination(config, arn, record, chosen.removeprefix("On"))
        queue = (config.get("DeadLetterConfig") or {}).get("TargetArn", "")
        if queue and condition != "Success" and _may_send(config, queue):
            failed = body if isinstance(body, dict) else {}
            attributes = {
                "RequestID": failed.get("requestId", ""), "ErrorCode": "200", "ErrorMessage": failed.get("errorMessage", ""),
            }  # fmt: skip
            send_to_queue(queue, json.dumps(event), attributes)

    def _to_destination(self, config: Json, arn: str, record: Json, outcome: str) -> None:
        from ministack.services import cloudwatch, sns

        service, role = arn.split(":")[2], config.get("Role", "")
        if service == "sqs" and _may_send(config, arn):
            send_to_queue(arn, json.dumps(record), {})
        elif service == "sns" and authorisation.role_may(role, "sns:Publish", arn):
            sns.publish_internal(arn, json.dumps(record), None)
        elif service == "events" and authorisation.role_may(role, "events:PutEvents", arn):
            self._region.put_event("lambda", f"Lambda Function Invocation Result - {outcome}", record, [_plain_arn(config)])
        else:
            named = {"FunctionName": config.get("FunctionName", "")}
            cloudwatch.record_metric("AWS/Lambda", "DestinationDeliveryFailures", 1, "Count", named)

    def _in_thread(self, work: Callable[[], None]) -> None:
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name="delivery", daemon=True).start()


# -- targets ---------------------------------------------------------------------------------------------------------
def _to_queue(target: Json, payload: str, sender: Sender) -> None:
    from ministack.core.arn import parse_arn
    from ministack.services import eventbridge, sqs

    arn = str(target["Arn"])
    if sqs._queue_by_arn(arn) is None:
        raise NotDelivered("NO_RESOURCE", f"The queue {arn} does not exist")
    if sender.role:
        _need_role(sender, "sqs:SendMessage", arn)
    elif not sqs.queue_policy_allows(arn, sender.service, sender.arn, sender.account):
        raise NotDelivered("NO_PERMISSIONS", f"The policy of {arn} does not allow {sender.service} to send for {sender.arn}")
    eventbridge._dispatch_to_sqs(parse_arn(arn), payload, target.get("SqsParameters") or {})


def _to_topic(target: Json, payload: str, sender: Sender) -> None:
    from ministack.core import iam_evaluator
    from ministack.services import eventbridge, sns

    arn = str(target["Arn"])
    topic = sns._topics.get(arn)
    if topic is None:
        raise NotDelivered("NO_RESOURCE", f"The topic {arn} does not exist")
    if sender.role:
        _need_role(sender, "sns:Publish", arn)
    else:
        asked = iam_evaluator.EvalContext(
            principal_arn="", principal_type="Service", principal_account=sender.account, action="sns:Publish",
            resource_arn=arn, region=arn.split(":")[3],
            service_context={"aws:sourcearn": sender.arn, "aws:sourceaccount": sender.account},
        )  # fmt: skip
        policy = (topic.get("attributes") or {}).get("Policy") or {}
        if iam_evaluator.evaluate_resource_policy(policy, asked, service=sender.service).decision != "Allow":
            raise NotDelivered("NO_PERMISSIONS", f"The policy of {arn} does not allow {sender.service}")
    eventbridge._dispatch_to_sns(arn, payload)


def _to_machine(target: Json, payload: str, sender: Sender) -> None:
    from ministack.services import stepfunctions

    from lab.region.region import Region

    arn = str(target["Arn"])
    if not sender.role:
        raise NotDelivered("NO_PERMISSIONS", f"{sender.arn} has no role to start {arn} with")
    _need_role(sender, "states:StartExecution", arn)
    with Region.acting_as(sender.arn):
        status, _, body = stepfunctions._start_execution({"stateMachineArn": arn, "input": payload})
    if status >= 400:
        code = json.loads(body).get("__type", "").rpartition("#")[2]
        raise NotDelivered("NO_RESOURCE" if code == "StateMachineDoesNotExist" else "ERROR_FROM_TARGET", code)


def _need_role(sender: Sender, action: str, resource: str) -> None:
    context = {"aws:sourcearn": sender.arn, "aws:sourceaccount": sender.account}
    if not authorisation.role_trusts(sender.role, sender.service, context):
        raise NotDelivered("FAILED_TO_ASSUME_ROLE", f"{sender.service} is not authorized to assume role {sender.role}")
    if not authorisation.role_may(sender.role, action, resource):
        raise NotDelivered("NO_PERMISSIONS", f"{sender.role} is not authorized to perform {action} on {resource}")


def send_to_queue(queue_arn: str, body: str, attributes: dict[str, str]) -> None:
    """Put a message with string attributes on a queue, a FIFO queue included; a queue that is gone takes nothing."""
    from ministack.services import sqs

    queue = sqs._queue_by_arn(queue_arn)
    if queue is None:
        return
    message: Json = {
        "QueueUrl": queue.get("url") or sqs._queue_url_for_account(queue_arn.split(":")[4], queue_arn.split(":")[5]),
        "MessageBody": body,
        "MessageAttributes": {k: {"DataType": "String", "StringValue": v} for k, v in attributes.items() if v},
    }
    if queue_arn.endswith(".fifo"):
        message |= {"MessageGroupId": "dead-letters", "MessageDeduplicationId": str(time.time_ns())}
    sqs._act_send_message(message, "")


# -- what is delivered -----------------------------------------------------------------------------------------------
def payload_of(target: Json, rule: Json, view: Any) -> str:
    """The text that a target gets: its constant input, the transformed or selected event, or all of it."""
    if target.get("InputTransformer"):
        return transformed(target["InputTransformer"], rule, view)
    if target.get("Input"):
        return str(target["Input"])
    event = view.event_with_detail()
    if target.get("InputPath"):
        found = read_path(target["InputPath"], event)
        return json.dumps(event if found is None else found)
    return json.dumps(event)


def transformed(transformer: Json, rule: Json | None, view: Any) -> str:
    """The input template with its variables filled in; paths may index arrays, `$.resources[0]`."""
    from ministack.services import eventbridge

    event = view.event_with_detail()
    values = {name: read_path(path, event) for name, path in (transformer.get("InputPathsMap") or {}).items()}
    filled = {name: "" if value is None else value for name, value in values.items()}
    filled |= {
        "aws.events.event.json": event,
        "aws.events.event": view.envelope(),
        "aws.events.event.ingestion-time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if rule:
        filled |= {"aws.events.rule-name": rule.get("Name", ""), "aws.events.rule-arn": rule.get("Arn", "")}
    return str(eventbridge._render_input_template(transformer.get("InputTemplate", ""), filled))


def read_path(path: str, event: Any) -> Any:
    """The value at a path such as `$.detail.x`, `$.resources[0]` or `$.detail['a-b']`; None if it is not there."""
    value = event
    for name, index, quoted in _PATH_PART.findall(path.removeprefix("$")):
        try:
            value = value[int(index)] if index else value[name or quoted]
        except (KeyError, IndexError, TypeError):
            return None
    return value


# -- small parts -----------------------------------------------------------------------------------------------------
def _sender(target: Json, rule: Json) -> Sender:
    arn = str(rule.get("Arn", ""))
    service = "scheduler.amazonaws.com" if ":scheduler:" in arn else "events.amazonaws.com"
    account = arn.split(":")[4] if arn.count(":") >= 5 else ""
    return Sender(service, arn, account, str(target.get("RoleArn") or ""))


def _invoke_config(config: Json) -> Json:
    from ministack.services import lambda_svc

    base = lambda_svc._functions.get(config.get("FunctionName", "")) or {}
    parts = str(config.get("FunctionArn", "")).split(":")
    qualifier = parts[7] if len(parts) > 7 else "$LATEST"
    by_qualifier = base.get("event_invoke_configs") or {}
    found: Json = by_qualifier.get(qualifier) or (base.get("event_invoke_config") if qualifier == "$LATEST" else None) or {}
    return {k: v for k, v in found.items() if v is not None}


def _plain_arn(config: Json) -> str:
    return ":".join(str(config.get("FunctionArn", "")).split(":")[:7])


def _may_send(config: Json, queue_arn: str) -> bool:
    return authorisation.role_may(config.get("Role", ""), "sqs:SendMessage", queue_arn)
