"""What the interpreter does as AWS does, where local interpreters differ. Virtual clock: no time passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab import asl
from tests.shims.asl_builders import State, catch, choice, machine, payload_of, retry, run, task


def engine_of(definition: State, invoke: Any = None, **more: Any) -> tuple[asl.Engine, asl.VirtualClock, asl.Machine]:
    """An engine on a virtual clock that starts at 0."""
    clock = asl.VirtualClock(0)
    return asl.Engine(clock, invoke or (lambda *_: {}), **more), clock, asl.parse(definition)


# -- data flow -------------------------------------------------------------------------------------------------------


def test_output_becomes_the_next_input_and_variables_stay() -> None:
    states = {
        "A": task({"n": "{% $states.input.n %}"}, Assign={"kept": "{% $states.result.Payload.n %}"}, Output={"b": 2}, Next="B"),
        "B": {"Type": "Pass", "Output": "{% {'input': $states.input, 'kept': $kept} %}", "End": True},
    }

    done = run(machine(states), payload_of(lambda p: {"n": p["n"] + 1}), {"n": 1})

    assert done.output == {"input": {"b": 2}, "kept": 2}
    assert (done.visited, done.transitions) == (["A", "B"], 2)


def test_all_names_of_one_assign_see_the_old_values() -> None:
    states = {
        "A": {"Type": "Pass", "Assign": {"x": 1, "y": 2}, "Next": "B"},
        "B": {"Type": "Pass", "Assign": {"x": "{% $y %}", "y": "{% $x %}"}, "Next": "C"},
        "C": {"Type": "Succeed", "Output": "{% [$x, $y] %}"},
    }

    assert run(machine(states)).output == [2, 1]


@pytest.mark.parametrize("value", ['a"b', "back\\slash", "new\nline", "{% no", None, [], {}, 1.5, [[1]], {"a": None}])
def test_values_pass_through_variables_unchanged(value: Any) -> None:
    states = {
        "A": {"Type": "Pass", "Assign": {"v": "{% $states.input.v %}"}, "Next": "B"},
        "B": {"Type": "Succeed", "Output": {"v": "{% $v %}"}},
    }

    assert run(machine(states), given={"v": value}).output == {"v": value}


def test_whole_floats_print_as_integers() -> None:
    done = run(machine({"A": {"Type": "Succeed", "Output": "{% $states.input.x * 2 %}"}}), given={"x": 1.5})

    assert json.dumps(done.output) == "3"


def test_an_undefined_result_is_an_error_that_a_task_can_catch() -> None:
    states = {
        "A": task(Output="{% $states.result.Payload.absent %}", Catch=[catch("F", "States.QueryEvaluationError")]),
        "F": {"Type": "Succeed", "Output": "caught"},
    }

    assert run(machine(states)).output == "caught"


def test_an_undefined_condition_fails_the_execution() -> None:
    done = run(machine({"A": choice(("$states.input.absent", "S"), default="S"), "S": {"Type": "Succeed"}}))

    assert (done.status, done.error) == ("FAILED", "States.QueryEvaluationError")
    assert done.events("EvaluationFailed")


def test_a_condition_that_is_no_boolean_fails_the_execution() -> None:
    done = run(machine({"A": choice(("1", "S"), default="S"), "S": {"Type": "Succeed"}}))

    assert (done.status, done.error) == ("FAILED", "States.QueryEvaluationError")


def test_the_first_rule_that_holds_counts_with_its_own_assign_and_output() -> None:
    rule = {"Condition": "{% $states.input.n > 1 %}", "Next": "S", "Assign": {"x": "rule"}, "Output": "of the rule"}
    states = {
        "A": {"Type": "Choice", "Choices": [rule], "Default": "S", "Assign": {"x": "default"}, "Output": "of the default"},
        "S": {"Type": "Succeed", "Output": "{% [$states.input, $x] %}"},
    }

    assert run(machine(states), given={"n": 2}).output == ["of the rule", "rule"]
    assert run(machine(states), given={"n": 1}).output == ["of the default", "default"]


def test_no_rule_and_no_default_is_no_choice_matched() -> None:
    done = run(machine({"A": choice((False, "S")), "S": {"Type": "Succeed"}}))

    assert (done.status, done.error) == ("FAILED", "States.NoChoiceMatched")


def test_the_context_tells_who_runs() -> None:
    done = run(machine({"A": {"Type": "Succeed", "Output": "{% $states.context %}"}}), given={"a": 1})

    context = done.output
    assert context["Execution"] == {
        "Id": done.arn,
        "Input": {"a": 1},
        "Name": "run",
        "RoleArn": done.role_arn,
        "StartTime": "2027-01-15T08:00:00.000Z",
        "RedriveCount": 0,
    }
    assert context["State"] == {"Name": "A", "EnteredTime": "2027-01-15T08:00:00.000Z", "RetryCount": 0}
    assert context["StateMachine"]["Name"] == "machine"


def test_a_fail_computes_its_error_and_cause() -> None:
    done = run(machine({"F": {"Type": "Fail", "Error": "{% $states.input.e %}", "Cause": "why"}}), given={"e": "QuorumLost"})

    assert (done.status, done.error, done.cause) == ("FAILED", "QuorumLost", "why")


def test_a_function_cannot_change_what_the_machine_keeps() -> None:
    def invoke(_: str, payload: Any) -> Any:
        payload["list"].append("changed")
        return payload

    done = run(machine({"A": task({"list": "{% $states.input.list %}"}, Output="{% $states.input.list %}")}), invoke, {"list": [1]})

    assert done.output == [1]


def test_data_over_256_kib_ends_the_execution_uncaught() -> None:
    states = {"A": task(Catch=[catch("S")]), "S": {"Type": "Succeed"}}

    done = run(machine(states), lambda *_: "x" * 262_145)

    assert (done.status, done.error) == ("FAILED", "States.DataLimitExceeded")


# -- retry and catch ----------------------------------------------------------------------------------------------------


class Failing:
    """A function that fails with the given errors in turn, then returns its number of calls."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, _: str, payload: Any) -> Any:
        self.calls += 1
        if self.errors:
            raise asl.TaskFailed(self.errors.pop(0), "cause")
        return {"calls": self.calls, "retry": payload.get("retry")}


def test_a_retry_waits_with_backoff_up_to_its_maximum_delay() -> None:
    retrier = retry("Busy", IntervalSeconds=2, BackoffRate=3, MaxAttempts=4, MaxDelaySeconds=10)
    engine, _clock, parsed = engine_of(machine({"A": task(Retry=[retrier])}), Failing(*["Busy"] * 4))

    done = engine.start(parsed, "run", {})
    engine.run()

    times = [e["timestamp"] for e in done.events("TaskScheduled")]
    assert times == [0, 2, 8, 18, 28]
    assert done.transitions == 5


def test_full_jitter_waits_between_nothing_and_the_delay() -> None:
    retrier = retry("Busy", IntervalSeconds=10, MaxAttempts=1, JitterStrategy="FULL")
    waits = set()
    for seed in range(20):
        engine, clock, parsed = engine_of(machine({"A": task(Retry=[retrier])}), Failing("Busy"), seed=seed)
        engine.start(parsed, "run", {})
        engine.run()
        waits.add(clock.time())

    assert all(0 <= w <= 10 for w in waits)
    assert len(waits) > 10


def test_each_retrier_counts_its_own_attempts_and_retry_count_counts_all() -> None:
    states = {"A": task({"retry": "{% $states.context.State.RetryCount %}"}, Retry=[retry("A", MaxAttempts=1), retry("B", MaxAttempts=1)])}

    done = run(machine(states), Failing("A", "B"))
    failed = run(machine(states), Failing("A", "B", "A"))

    assert done.output["Payload"] == {"calls": 3, "retry": 2}
    assert (failed.status, failed.error) == ("FAILED", "A")


@pytest.mark.parametrize(
    ("names", "error", "caught"),
    [
        (["States.ALL"], "Anything", True),
        (["States.ALL"], "States.Runtime", False),
        (["States.ALL"], "States.DataLimitExceeded", False),
        (["States.TaskFailed"], "Anything", True),
        (["States.TaskFailed"], "States.Timeout", False),
        (["States.Timeout"], "States.HeartbeatTimeout", True),
        (["States.HeartbeatTimeout"], "States.Timeout", False),
        (["Base"], "Derived", False),
    ],
)
def test_error_names_match_as_on_aws(names: list[str], error: str, caught: bool) -> None:
    states = {"A": task(Catch=[catch("S", *names)]), "S": {"Type": "Succeed", "Output": "{% $states.input %}"}}

    done = run(machine(states), Failing(error))

    assert done.status == ("SUCCEEDED" if caught else "FAILED")
    assert done.output == ({"Error": error, "Cause": "cause"} if caught else None)


def test_a_catcher_assigns_and_forms_its_output_from_the_error() -> None:
    catcher = catch("S", Assign={"e": "{% $states.errorOutput.Error %}"}, Output="{% $states.input.n %}")
    states = {"A": task(Catch=[catcher]), "S": {"Type": "Succeed", "Output": "{% [$e, $states.input] %}"}}

    assert run(machine(states), Failing("Bad"), {"n": 5}).output == ["Bad", 5]


def test_an_assign_of_a_failed_attempt_leaves_nothing() -> None:
    states = {
        "A": {"Type": "Pass", "Assign": {"x": "old"}, "Next": "B"},
        "B": task(Assign={"x": "new", "y": "{% $states.result.absent %}"}, Catch=[catch("S")]),
        "S": {"Type": "Succeed", "Output": "{% $x %}"},
    }

    assert run(machine(states)).output == "old"


def test_a_python_exception_is_reported_as_lambda_reports_it() -> None:
    class SubnetNotAdjacent(Exception):
        pass

    def invoke(*_: Any) -> Any:
        raise SubnetNotAdjacent("seen 10.0.0.1")

    done = run(machine({"A": task()}), invoke)

    assert done.error == "SubnetNotAdjacent"
    assert json.loads(done.cause or "")["errorMessage"] == "seen 10.0.0.1"


def test_a_failed_assertion_in_a_handler_ends_the_test_not_the_task() -> None:
    def invoke(*_: Any) -> Any:
        raise AssertionError("the test is wrong")

    with pytest.raises(AssertionError, match="the test is wrong"):
        run(machine({"A": task(Catch=[catch("S")]), "S": {"Type": "Succeed"}}), invoke)


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [30, "{% $states.input.s %}"])
def test_a_task_times_out_though_its_function_runs_on(seconds: Any) -> None:
    engine, clock, parsed = engine_of(machine({"A": task(TimeoutSeconds=seconds)}), lambda *_: clock.sleep(50))

    done = engine.start(parsed, "run", {"s": 30})
    engine.run()

    assert (done.error, done.stopped_at) == ("States.Timeout", 30)


def test_a_machines_own_time_out_runs_no_catch() -> None:
    states = {"A": task(callback=True, Catch=[catch("S")]), "S": {"Type": "Succeed"}}
    told: list[str] = []
    engine, _, parsed = engine_of(machine(states, TimeoutSeconds=100), on_status=lambda x: told.append(x.status))

    done = engine.start(parsed, "run", {})
    engine.run(until=0)
    engine.run()

    assert (done.status, done.stopped_at, done.visited) == ("TIMED_OUT", 100, ["A"])
    assert done.history[-1]["type"] == "ExecutionTimedOut"
    assert told == ["RUNNING", "TIMED_OUT"]


@pytest.mark.parametrize(
    ("wait", "until"), [({"Seconds": 5}, 5), ({"Seconds": "{% 2 + 5 %}"}, 7), ({"Timestamp": "1970-01-01T00:01:00Z"}, 60)]
)
def test_a_wait_waits(wait: State, until: float) -> None:
    engine, clock, parsed = engine_of(machine({"W": {"Type": "Wait", "End": True, **wait}}))

    done = engine.start(parsed, "run", {})
    engine.run()

    assert (done.status, clock.time()) == ("SUCCEEDED", until)


def test_millis_is_the_virtual_clock() -> None:
    states = {"W": {"Type": "Wait", "Seconds": 90, "Next": "S"}, "S": {"Type": "Succeed", "Output": "{% $millis() %}"}}
    engine, _, parsed = engine_of(machine(states))

    done = engine.start(parsed, "run", {})
    engine.run()

    assert done.output == 90_000


def test_a_run_until_a_time_stops_there() -> None:
    engine, clock, parsed = engine_of(machine({"W": {"Type": "Wait", "Seconds": 90, "End": True}}))
    done = engine.start(parsed, "run", {})

    engine.run(until=89)
    assert (done.status, clock.time()) == ("RUNNING", 89)
    engine.run(until=90)
    assert done.status == "SUCCEEDED"


def test_sleeping_handlers_of_several_executions_overlap() -> None:
    lock: list[str] = []
    order: list[tuple[float, str]] = []

    def invoke(_: str, payload: Any) -> Any:
        for _ in range(25):
            if not lock:
                lock.append(payload["who"])
                order.append((clock.time(), payload["who"]))
                clock.sleep(payload["hold"])
                lock.clear()
                return {"done": True}
            clock.sleep(2)
        return {"done": False}

    engine, clock, parsed = engine_of(machine({"A": task("{% $states.input %}", TimeoutSeconds=60)}), invoke)
    done = [engine.start(parsed, f"e{i}", {"who": f"e{i}", "hold": h}) for i, h in enumerate([5, 3, 100])]
    engine.run()

    assert order == [(0, "e0"), (6, "e1"), (10, "e2")]
    assert [d.error for d in done] == [None, None, "States.Timeout"]
    assert done[2].stopped_at == 60


def test_the_world_moves_by_itself_while_a_handler_sleeps() -> None:
    world = {"online": False}

    def invoke(*_: Any) -> Any:
        for second in range(50):
            if world["online"]:
                return second
            clock.sleep(1)

    engine, clock, parsed = engine_of(machine({"A": task(Output="{% $states.result.Payload %}")}), invoke)
    done = engine.start(parsed, "run", {})
    engine.call_later(7.5, lambda: world.update(online=True))
    engine.run()

    assert done.output == 8


# -- callbacks -------------------------------------------------------------------------------------------------------------


class Answering:
    """A callback function: keeps its tokens; `answer(token)` is called from inside it."""

    def __init__(self, answer: Any = None) -> None:
        self.tokens: list[str] = []
        self.answer = answer

    def __call__(self, _: str, payload: Any) -> Any:
        self.tokens.append(payload["token"])
        if self.answer:
            return self.answer(payload["token"])
        return {"ignored": True}


def test_a_callback_task_ends_with_its_answer_not_with_its_functions_result() -> None:
    function = Answering(lambda token: engine.send_task_success(token, {"ok": 1}))
    engine, _, parsed = engine_of(machine({"A": task(callback=True)}), function)

    done = engine.start(parsed, "run", {})
    engine.run()

    assert done.output == {"ok": 1}


def test_a_callback_task_waits_for_an_answer_from_outside() -> None:
    function = Answering()
    engine, _clock, parsed = engine_of(machine({"A": task(callback=True)}), function)
    done = engine.start(parsed, "run", {})
    engine.run()
    assert done.status == "RUNNING"
    assert done.events("TaskSubmitted")

    engine.call_later(10, lambda: engine.send_task_failure(function.tokens[0], "Busy", "held"))
    engine.run()

    assert (done.status, done.error, done.cause, done.stopped_at) == ("FAILED", "Busy", "held", 10)


def test_a_function_that_raises_fails_its_callback_task_at_once() -> None:
    def refuse(token: str) -> None:
        raise asl.TaskFailed("AwsThrottled", "slow down")

    done = run(machine({"A": task(callback=True, TimeoutSeconds=600)}), Answering(refuse))

    assert (done.error, (done.stopped_at or 0) - done.started_at) == ("AwsThrottled", 0)


def test_a_missing_heartbeat_is_its_own_error() -> None:
    function = Answering()
    engine, _clock, parsed = engine_of(machine({"A": task(callback=True, TimeoutSeconds=600, HeartbeatSeconds=20)}), function)
    done = engine.start(parsed, "run", {})
    for second in (15, 30):
        engine.call_later(second, lambda: engine.send_task_heartbeat(function.tokens[0]))
    engine.run()

    assert (done.error, done.stopped_at) == ("States.HeartbeatTimeout", 50)


def test_each_attempt_has_a_new_token_and_a_late_answer_to_the_old_one_is_refused() -> None:
    function = Answering()
    retrier = retry("States.Timeout", MaxAttempts=1)
    engine, _clock, parsed = engine_of(machine({"A": task(callback=True, TimeoutSeconds=10, Retry=[retrier])}), function)
    done = engine.start(parsed, "run", {})
    engine.run(until=12)
    first, second = function.tokens

    with pytest.raises(asl.TaskTimedOut):
        engine.send_task_success(first, {})
    engine.send_task_success(second, {"second": True})
    engine.run()

    assert done.output == {"second": True}


def test_an_answer_counts_once() -> None:
    function = Answering()
    engine, _, parsed = engine_of(machine({"A": task(callback=True)}), function)
    engine.start(parsed, "run", {})
    engine.run()
    engine.send_task_success(function.tokens[0], {})

    with pytest.raises(asl.TaskTimedOut):
        engine.send_task_failure(function.tokens[0])
    with pytest.raises(asl.InvalidToken):
        engine.send_task_heartbeat("bogus")
    with pytest.raises(asl.InvalidOutput):
        engine.send_task_success(function.tokens[0], "{not json")


# -- starting and stopping -------------------------------------------------------------------------------------------------


def test_the_same_name_and_input_is_the_same_running_execution() -> None:
    engine, _, parsed = engine_of(machine({"W": {"Type": "Wait", "Seconds": 9, "End": True}}))
    first = engine.start(parsed, "n", {"a": 1})

    assert engine.start(parsed, "n", {"a": 1}) is first
    with pytest.raises(asl.ExecutionAlreadyExists):
        engine.start(parsed, "n", {"a": 2})
    engine.run()
    with pytest.raises(asl.ExecutionAlreadyExists):
        engine.start(parsed, "n", {"a": 1})


@pytest.mark.parametrize("name", ["", "x" * 81, "a b", "a/b", "a#b", "a\n"])
def test_names_that_aws_refuses_are_refused(name: str) -> None:
    engine, _, parsed = engine_of(machine({"S": {"Type": "Succeed"}}))

    with pytest.raises(asl.InvalidName):
        engine.start(parsed, name, {})


def test_a_stop_ends_everything_and_nothing_changes_the_status_afterwards() -> None:
    function = Answering()
    told: list[str] = []
    states = {"A": task(callback=True, Catch=[catch("S")]), "S": {"Type": "Succeed"}}
    engine, _, parsed = engine_of(machine(states), function, on_status=lambda x: told.append(x.status))
    done = engine.start(parsed, "run", {})
    engine.run()

    engine.stop(done.arn, "Operator", "enough")
    with pytest.raises(asl.TaskTimedOut):
        engine.send_task_success(function.tokens[0], {})
    engine.stop(done.arn)
    engine.run()

    assert (done.status, done.error, done.cause, done.visited) == ("ABORTED", "Operator", "enough", ["A"])
    assert told == ["RUNNING", "ABORTED"]
    assert [e["type"] for e in done.history[-2:]] == ["TaskStateAborted", "ExecutionAborted"]


def test_a_function_may_stop_the_execution_that_called_it() -> None:
    def invoke(*_: Any) -> None:
        engine.stop(done.arn)

    engine, _, parsed = engine_of(machine({"A": task(Next="B"), "B": task()}), invoke)
    done = engine.start(parsed, "run", {})
    engine.run()

    assert (done.status, done.visited) == ("ABORTED", ["A"])


def test_a_machine_starts_another_by_name() -> None:
    child = asl.parse(machine({"S": {"Type": "Succeed", "Output": "{% $states.input %}"}}), name="child")
    arguments = {"StateMachineArn": "{% $states.input.arn %}", "Name": "of-parent", "Input": {"x": 1}}
    start = {"Type": "Task", "Resource": "arn:aws:states:::states:startExecution", "Arguments": arguments}
    definition = machine({"A": {**start, "Next": "B"}, "B": {**start, "Arguments": {**arguments, "Input": 2}, "End": True}})
    engine, _, parsed = engine_of(definition)
    arn = engine.register(child)

    done = engine.start(parsed, "run", {"arn": arn})
    engine.run()

    started = engine.executions[f"{arn.replace('stateMachine', 'execution')}:of-parent"]
    assert (started.status, started.output) == ("SUCCEEDED", {"x": 1})
    assert done.status == "FAILED"


def test_a_second_start_of_a_name_that_ran_is_a_named_error() -> None:
    child = asl.parse(machine({"S": {"Type": "Succeed"}}), name="child")
    start = {
        "Type": "Task",
        "Resource": "arn:aws:states:::states:startExecution",
        "Arguments": {"StateMachineArn": "{% $states.input.arn %}", "Name": "n"},
        "End": True,
    }
    engine, _, parsed = engine_of(machine({"A": start}))
    arn = engine.register(child)
    engine.start(parsed, "one", {"arn": arn})
    engine.run()

    again = engine.start(parsed, "two", {"arn": arn})
    engine.run()

    assert again.error == "StepFunctions.ExecutionAlreadyExistsException"


def test_what_the_role_may_not_do_fails_the_task() -> None:
    engine, _, parsed = engine_of(machine({"A": task()}), authorise=lambda _, action, resource: f"no {action} on {resource}")

    done = engine.start(parsed, "run", {})
    engine.run()

    assert (done.error, done.cause) == ("Lambda.AWSLambdaException", "no lambda:InvokeFunction on f")


def test_the_history_is_one_chain_of_aws_event_types() -> None:
    done = run(machine({"A": task(Next="B"), "B": choice((True, "S")), "S": {"Type": "Succeed"}}))

    assert [e["type"] for e in done.history] == [
        "ExecutionStarted",
        "TaskStateEntered",
        "TaskScheduled",
        "TaskStarted",
        "TaskSucceeded",
        "TaskStateExited",
        "ChoiceStateEntered",
        "ChoiceStateExited",
        "SucceedStateEntered",
        "SucceedStateExited",
        "ExecutionSucceeded",
    ]
    assert [e["previousEventId"] for e in done.history] == list(range(11))
    assert done.history[2]["taskScheduledEventDetails"]["resourceType"] == "lambda"
    assert done.history[2]["taskScheduledEventDetails"]["resource"] == "invoke"


def test_states_are_told_as_they_are_entered_left_and_failed() -> None:
    told: list[tuple[str, str, str | None]] = []
    states = {"A": task(Catch=[catch("S")]), "S": {"Type": "Succeed"}}

    run(machine(states), Failing("Bad"), on_state=lambda _, state, event, error: told.append((state, event, error)))

    assert told == [
        ("A", "entered", None),
        ("A", "failed", "Bad"),
        ("A", "exited", None),
        ("S", "entered", None),
        ("S", "exited", None),
    ]
