"""State machines run on the lab's own interpreter behind ministack's `states` API.

ministack keeps create, update, describe, list, versions, aliases and tags. Made true here, because without it ministack
differs from AWS: a definition is checked when it is created; StartExecution is idempotent by name and input and refuses
bad names and inputs; the definition and role of a version are those that run; StopExecution ends everything at once;
heartbeats, time-outs and a machine's own time-out; a function that raises fails its callback task; tokens per attempt;
answers to closed tokens are TaskTimedOut; histories with previousEventId and the states inside Map and Parallel; a status
event for every end, TIMED_OUT included; and the machine's role is needed for lambda:InvokeFunction and
states:StartExecution. Left out: redrive, Express machines, logging to CloudWatch.

Journal: `execution` at start and end, `state` for every state entered, exited and failed; `api_call` with source
"internal" for executions that a machine starts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ministack import app
from ministack.core import iam_evaluator
from ministack.core.responses import error_response_json, get_account_id, get_region, json_response
from ministack.services import lambda_svc
from ministack.services import stepfunctions as sf
from ministack.services.cloudformation import provisioners

from lab import asl
from lab.asl.execution import dumps
from lab.asl.faults import Faults
from lab.region import authorisation

if TYPE_CHECKING:
    from lab.region.region import Region

Response = Any  # ministack's triple of status, headers and body

WORKERS = 1000
"""Threads that wait for a function at most; how many functions run at once is the business of functions.py."""
PAYLOAD_CAP = 248 * 1024
"""Bytes of an input or output that a status event carries at most: Step Functions, "Event payload limit"."""
SERVICE = "states.amazonaws.com"
_ENDED = ("SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED")


def apply(region: Region) -> None:
    """Put the interpreter behind the API of this region; its threads end when the region stops."""
    binding = StateMachines(region)
    region.at_stop(binding.engine.close)
    region.state_machines = binding  # type: ignore[attr-defined]


class StateMachines:
    """The engine of a region and ministack's handlers that speak to it."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.faults: Faults = lambda point: None
        """What breaks a run at a fault point (lab/asl/faults.py)."""
        self.engine = asl.Engine(
            asl.RealClock(),
            self._invoke,
            on_status=self._status_changed,
            on_state=self._state_changed,
            faults=lambda point: self.faults(point),
            start_execution=self._start_from_machine,
            authorise=self._authorise,
            region=region.name,
            account=region.account,
            workers=WORKERS,
            seed=uuid.uuid4().int,
        )
        self._create, self._update, self._delete = (
            sf._create_state_machine,
            sf._update_state_machine,
            sf._delete_state_machine,
        )
        self._describe, self._list, self._history = sf._describe_execution, sf._list_executions, sf._get_execution_history
        replaced: dict[str, Callable[[dict[str, Any]], Response]] = {
            "_create_state_machine": self.create_state_machine,
            "_update_state_machine": self.update_state_machine,
            "_delete_state_machine": self.delete_state_machine,
            "_start_execution": self.start_execution,
            "_stop_execution": self.stop_execution,
            "_describe_execution": self.describe_execution,
            "_describe_state_machine_for_execution": self.describe_state_machine_for_execution,
            "_list_executions": self.list_executions,
            "_get_execution_history": self.get_execution_history,
            "_send_task_success": self.send_task_success,
            "_send_task_failure": self.send_task_failure,
            "_send_task_heartbeat": self.send_task_heartbeat,
        }
        for name, handler in replaced.items():
            setattr(sf, name, handler)
        definition_of = provisioners._sfn_definition
        provisioners._sfn_definition = lambda props: _checked_for_template(definition_of(props))

    # -- machines ------------------------------------------------------------------------------------------------

    def create_state_machine(self, data: dict[str, Any]) -> Response:
        """CreateStateMachine, which refuses what the interpreter refuses."""
        return _refused(data.get("definition", "")) or self._create(data)

    def update_state_machine(self, data: dict[str, Any]) -> Response:
        """UpdateStateMachine, likewise."""
        return (_refused(data["definition"]) if data.get("definition") else None) or self._update(data)

    def delete_state_machine(self, data: dict[str, Any]) -> Response:
        """DeleteStateMachine; what still runs of the machine is terminated."""
        for execution in list(self.engine.executions.values()):
            if execution.machine.arn == data.get("stateMachineArn"):
                self.engine.stop(execution.arn)
        return self._delete(data)

    # -- executions ----------------------------------------------------------------------------------------------

    def start_execution(self, data: dict[str, Any]) -> Response:
        """StartExecution of a machine, a version or an alias."""
        requested = str(data.get("stateMachineArn", ""))
        arn = sf._resolve_state_machine_arn(requested)
        if arn is None:
            return error_response_json("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{requested}'", 400)
        version = sf._execution_version_arn(requested)
        record = sf._state_machine_versions.get(version) or sf._state_machines[arn]
        name, text = data.get("name") or str(uuid.uuid4()), data.get("input", "{}")
        try:
            given = json.loads(text)
        except (TypeError, ValueError) as exc:
            message = f"Invalid State Machine Execution Input: '{exc}'"
            return error_response_json("InvalidExecutionInput", message, 400)
        try:
            machine = _machine(record["definition"], sf._state_machines[arn]["name"], arn, record["roleArn"])
            alias = requested if requested in sf._state_machine_aliases else None
            execution = self.engine.start(
                machine,
                name,
                given,
                arn=_execution_arn(machine.name, name),
                prepare=lambda new: _record(new, text, version, alias),
            )
        except asl.DefinitionError as exc:
            return error_response_json("InvalidDefinition", f"Invalid State Machine Definition: '{exc}'", 400)
        except asl.ApiError as exc:
            return error_response_json(exc.code, str(exc), 400)
        return json_response({"executionArn": execution.arn, "startDate": execution.started_at})

    def stop_execution(self, data: dict[str, Any]) -> Response:
        """StopExecution; harmless when the execution has ended."""
        try:
            error, cause = data.get("error") or "", data.get("cause") or ""
            execution = self.engine.stop(str(data.get("executionArn")), error, cause)
        except asl.ApiError as exc:
            return error_response_json(exc.code, str(exc), 400)
        return json_response({"stopDate": execution.stopped_at})

    def describe_execution(self, data: dict[str, Any]) -> Response:
        """DescribeExecution with the fields about redrive, versions and aliases."""
        record = self._synchronised(data.get("executionArn"))
        status, headers, body = self._describe(data)
        if record is None or status != 200:
            return status, headers, body
        shown = {k: v for k, v in json.loads(body).items() if v is not None}
        if record["status"] != "SUCCEEDED":
            shown.pop("outputDetails", None)
        more = {k: record[k] for k in ("error", "cause", "stateMachineVersionArn", "stateMachineAliasArn")}
        shown |= {k: v for k, v in more.items() if v is not None}
        shown |= {"redriveCount": 0} | _redrive(record["status"])
        return json_response(shown)

    def describe_state_machine_for_execution(self, data: dict[str, Any]) -> Response:
        """The definition and role that the execution runs with."""
        execution = self.engine.executions.get(str(data.get("executionArn")))
        if execution is None:
            return _no_execution(data)
        machine = execution.machine
        return json_response(
            {
                "stateMachineArn": machine.arn,
                "name": machine.name,
                "definition": execution.extra["definition"],
                "roleArn": machine.role_arn,
                "updateDate": execution.started_at,
            }
        )

    def list_executions(self, data: dict[str, Any]) -> Response:
        """ListExecutions, by machine, status and page."""
        for arn in list(sf._executions):
            self._synchronised(arn)
        return self._list(data)

    def get_execution_history(self, data: dict[str, Any]) -> Response:
        """GetExecutionHistory; events appear as they happen."""
        self._synchronised(data.get("executionArn"))
        return self._history(data)

    # -- callbacks -----------------------------------------------------------------------------------------------

    def send_task_success(self, data: dict[str, Any]) -> Response:
        """SendTaskSuccess."""
        return _answered(lambda: self.engine.send_task_success(data.get("taskToken", ""), str(data.get("output", ""))))

    def send_task_failure(self, data: dict[str, Any]) -> Response:
        """SendTaskFailure."""
        error, cause = data.get("error") or "", data.get("cause") or ""
        return _answered(lambda: self.engine.send_task_failure(data.get("taskToken", ""), error, cause))

    def send_task_heartbeat(self, data: dict[str, Any]) -> Response:
        """SendTaskHeartbeat."""
        return _answered(lambda: self.engine.send_task_heartbeat(data.get("taskToken", "")))

    # -- the engine's calls ----------------------------------------------------------------------------------------

    def _invoke(self, function: str, payload: Any) -> Any:
        """Run a function; raises TaskFailed with the error names and the cause that AWS gives."""
        try:
            reference = sf._resolve_lambda_function_ref(function, optimized=True)
        except sf._ExecutionError as exc:
            raise asl.TaskFailed(exc.error, exc.cause) from exc
        record, config, name = lambda_svc._get_func_record_for_ref(reference)
        if not record or not config:
            raise asl.TaskFailed("Lambda.ResourceNotFoundException", f"Function not found: {name}")
        result = lambda_svc._execute_function_with_config_scope(lambda_svc._execution_record_for_config(record, config), payload)
        body = result.get("body")
        if isinstance(body, str | bytes):
            try:
                body = json.loads(body)
            except ValueError:
                body = body if isinstance(body, str) else body.decode(errors="replace")
        if not result.get("error") and not result.get("throttle"):
            return body
        raise _function_failure(result, body)

    def _start_from_machine(self, parent: asl.Execution, arguments: dict[str, Any]) -> dict[str, Any]:
        """states:startExecution, as the machine's role."""
        given = arguments.get("Input", {})
        data = {"stateMachineArn": arguments["StateMachineArn"], "input": given if isinstance(given, str) else dumps(given)}
        if arguments.get("Name"):
            data["name"] = arguments["Name"]
        principal = _session_arn(parent)
        with self._region.acting_as(principal):
            status, _, body = self.start_execution(data)
        answer = json.loads(body)
        error = str(answer.get("__type", "")).rpartition("#")[2] if status >= 400 else None
        self._region.journal.record(
            "api_call",
            service="states",
            operation="StartExecution",
            principal=principal,
            status=status,
            error=error,
            source="internal",
            detail={k: data[k] for k in ("stateMachineArn", "name") if k in data},
        )
        if error is not None:
            raise asl.TaskFailed(f"StepFunctions.{error.removesuffix('Exception')}Exception", str(answer.get("message", "")))
        return {"ExecutionArn": answer["executionArn"], "StartDate": asl.iso(answer["startDate"])}

    def _authorise(self, execution: asl.Execution, action: str, resource: str) -> str | None:
        """Why the machine's role may not do this, as AWS words it, or None."""
        if not app.AUTH:
            return None
        account, region = get_account_id(), get_region()
        if action == "lambda:InvokeFunction" and not resource.startswith("arn:"):
            resource = f"arn:aws:lambda:{region}:{account}:function:{resource}"
        role = execution.role_arn.rpartition("/")[2]
        principal = _session_arn(execution)
        source = {"aws:SourceAccount": account, "aws:SourceArn": execution.machine.arn}
        if not authorisation.role_trusts(execution.role_arn, SERVICE, source):
            return f"Neither the global service principal {SERVICE}, nor the regional one is authorized to assume the provided role."
        context = iam_evaluator.EvalContext(
            principal_arn=principal,
            principal_type="AssumedRole",
            principal_account=account,
            action=action,
            resource_arn=resource,
            region=region,
        )
        decision = iam_evaluator.evaluate(context, iam_evaluator._gather_role_policies(role, account)).decision
        if decision == "Allow":
            return None
        because = "with an explicit deny in" if decision == "Deny" else f"because no identity-based policy allows the {action}"
        tail = "an identity-based policy" if decision == "Deny" else "action"
        return f"User: {principal} is not authorized to perform: {action} on resource: {resource} {because} {tail}"

    # -- news ------------------------------------------------------------------------------------------------------

    def _status_changed(self, execution: asl.Execution) -> None:
        """Journal and status event. Told in order, at the start and at the end."""
        started = not execution.extra.setdefault("told", False)
        execution.extra["told"] = True
        status = "RUNNING" if started else execution.status
        ended = status in _ENDED
        self._region.journal.record(
            "execution",
            machine=execution.machine.name,
            arn=execution.arn,
            name=execution.name,
            status=status,
            input=execution.input,
            output=execution.output if ended else None,
            error=execution.error if ended else None,
            cause=execution.cause if ended else None,
            transitions=execution.transitions if ended else 0,
        )
        detail = _status_detail(execution, status)
        execution.context.copy().run(
            self._region.put_event, "aws.states", "Step Functions Execution Status Change", detail, [execution.arn]
        )

    def _state_changed(self, execution: asl.Execution, state: str, event: str, error: str | None) -> None:
        self._region.journal.record("state", arn=execution.arn, machine=execution.machine.name, state=state, event=event, error=error)

    # -- ministack's records ---------------------------------------------------------------------------------------

    def _synchronised(self, arn: Any) -> dict[str, Any] | None:
        record: dict[str, Any] | None = sf._executions.get(arn) if isinstance(arn, str) else None
        execution = self.engine.executions.get(arn) if isinstance(arn, str) else None
        if record is None or execution is None:
            return record
        if record["status"] == "RUNNING" and execution.stopped_at is not None:
            record["stopDate"] = asl.iso(execution.stopped_at)
            record["error"], record["cause"] = execution.error, execution.cause
            record["output"] = dumps(execution.output) if execution.status == "SUCCEEDED" else None
            record["status"] = execution.status
        return record


@lru_cache(maxsize=256)
def _machine(definition: str, name: str, arn: str, role_arn: str) -> asl.Machine:
    return asl.parse(definition, name=name, arn=arn, role_arn=role_arn)


def _record(execution: asl.Execution, text: str, version: str | None, alias: str | None) -> None:
    """ministack's view of an execution, which its describe, list and history read."""
    execution.extra["definition"] = dumps(execution.machine.definition)
    sf._executions[execution.arn] = {
        "executionArn": execution.arn,
        "stateMachineArn": execution.machine.arn,
        "stateMachineVersionArn": version,
        "stateMachineAliasArn": alias,
        "name": execution.name,
        "status": "RUNNING",
        "startDate": asl.iso(execution.started_at),
        "stopDate": None,
        "input": text,
        "inputDetails": {"included": True},
        "output": None,
        "outputDetails": {"included": True},
        "error": None,
        "cause": None,
        "events": execution.history,
    }


def _execution_arn(machine: str, name: str) -> str:
    return f"arn:aws:states:{get_region()}:{get_account_id()}:execution:{machine}:{name}"


def _session_arn(execution: asl.Execution) -> str:
    """The role of a machine as its calls show it."""
    role = execution.role_arn.rpartition("/")[2]
    return f"arn:aws:sts::{get_account_id()}:assumed-role/{role}/{execution.name[:64]}"


def _problem(definition: str) -> str | None:
    try:
        asl.parse(definition)
    except asl.DefinitionError as exc:
        return f"Invalid State Machine Definition: 'SCHEMA_VALIDATION_FAILED: {exc}'"
    return None


def _refused(definition: str) -> Response | None:
    """The API's refusal of a definition: JSON only, unlike a template's."""
    try:
        json.loads(definition)
    except (TypeError, ValueError) as exc:
        return error_response_json("InvalidDefinition", f"Invalid State Machine Definition: 'INVALID_JSON_DESCRIPTION: {exc}'", 400)
    problem = _problem(definition)
    return error_response_json("InvalidDefinition", problem, 400) if problem else None


def _checked_for_template(definition: str) -> str:
    """A template's definition, YAML or JSON, as the JSON that the API would have taken."""
    problem = _problem(definition)
    if problem:
        raise ValueError(f'Resource handler returned message: "{problem}" (HandlerErrorCode: InvalidRequest)')
    return json.dumps(asl.load(definition))


def _function_failure(result: dict[str, Any], body: Any) -> asl.TaskFailed:
    """The error of a failed invocation: the function's own error name, or Lambda's."""
    text = body if isinstance(body, str) else json.dumps(body)
    if result.get("throttle") or "TooManyRequestsException" in text:
        return asl.TaskFailed("Lambda.TooManyRequestsException", text)
    if isinstance(body, dict) and body.get("errorType"):
        known = ("errorMessage", "errorType", "requestId", "stackTrace")
        return asl.TaskFailed(str(body["errorType"]), json.dumps({k: body[k] for k in known if k in body}))
    return asl.TaskFailed("Lambda.Unknown", text)


def _answered(call: Callable[[], None]) -> Response:
    try:
        call()
    except asl.ApiError as exc:
        return error_response_json(exc.code, str(exc), 400)
    return json_response({})


def _no_execution(data: dict[str, Any]) -> Response:
    return error_response_json("ExecutionDoesNotExist", f"Execution Does Not Exist: '{data.get('executionArn')}'", 400)


def _redrive(status: str) -> dict[str, str]:
    if status in ("RUNNING", "SUCCEEDED"):
        return {"redriveStatus": "NOT_REDRIVABLE", "redriveStatusReason": f"Execution is {status} and cannot be redriven."}
    return {"redriveStatus": "REDRIVABLE"}


def _status_detail(execution: asl.Execution, status: str) -> dict[str, Any]:
    """The detail of a status event; fields as in "Step Functions Execution Status Change"."""
    given, output = dumps(execution.input), dumps(execution.output) if status == "SUCCEEDED" else None
    ended = status in _ENDED and execution.stopped_at is not None
    return {
        "executionArn": execution.arn,
        "stateMachineArn": execution.machine.arn,
        "name": execution.name,
        "status": status,
        "startDate": int(execution.started_at * 1000),
        "stopDate": int((execution.stopped_at or 0) * 1000) if ended else None,
        "input": given if len(given.encode()) <= PAYLOAD_CAP else None,
        "output": output if output is None or len(output.encode()) <= PAYLOAD_CAP else None,
        "inputDetails": {"included": len(given.encode()) <= PAYLOAD_CAP},
        "outputDetails": None if output is None else {"included": len(output.encode()) <= PAYLOAD_CAP},
        "stateMachineVersionArn": None,
        "stateMachineAliasArn": None,
        "redriveCount": 0,
        "redriveDate": None,
        "redriveStatusReason": None,
        **_redrive(status),
        "error": execution.error if ended else None,
        "cause": execution.cause if ended else None,
    }
