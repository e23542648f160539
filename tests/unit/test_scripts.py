"""What the end of a command means: always a result, "again", or an error of the closed set."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojoin import errors
from autojoin.domain.scripts import TERMINAL, Invocation, conclude, last_line

OK = 'some log\n{"ok":true,"node_uid":"u"}\n'
DETAILS = [
    "Success",
    "Failed",
    "Execution Timed Out",
    "ExecutionTimedOut",
    "Delivery Timed Out",
    "Undeliverable",
    "Cancelled",
    "Terminated",
    "",
]


def ended(status: str, *, details: str = "", code: int = -1, stdout: str = "", stderr: str = "") -> Invocation:
    return Invocation("c-1", "i-1", "autojoin-verify", status, details or status, code, stdout, stderr)


text = st.text('{}[]":,oktruefalse1 \n\r\x00\u2028é', max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ok", "error", "seen", "x"]), inner, max_size=3),
    max_leaves=6,
)
outputs = st.one_of(text, st.binary(max_size=20).map(lambda b: b.decode("latin-1")), json_values.map(json.dumps))


@given(
    status=st.sampled_from(sorted(TERMINAL)),
    details=st.sampled_from(DETAILS) | text,
    code=st.integers(-1, 255),
    stdout=outputs,
    stderr=outputs,
)
def test_every_end_is_a_success_another_try_or_an_error_of_the_closed_set(
    status: str, details: str, code: int, stdout: str, stderr: str
) -> None:
    try:
        result = conclude(ended(status, details=details, code=code, stdout=stdout, stderr=stderr))
    except (*errors.SEND_AGAIN, *errors.RETRYABLE) as error:
        pytest.fail(f"{type(error).__name__} is no end of a command")
    except errors.AutojoinError:
        return

    if result is None:
        assert errors.BY_EXIT_CODE[code] in errors.SEND_AGAIN
        assert status == "Failed"
    else:
        assert status == "Success"
        assert result.ok


@given(stdout=outputs)
def test_a_last_line_is_a_result_or_nothing(stdout: str) -> None:
    said = last_line(stdout)

    assert said is None or isinstance(said.ok, bool)


def test_a_script_that_ended_well_is_believed_by_its_last_line() -> None:
    result = conclude(ended("Success", code=0, stdout=OK))

    assert result is not None
    assert result.fields == {"ok": True, "node_uid": "u"}


@pytest.mark.parametrize(
    "stdout", ["", "\n\n", "all is well", '{"ok":"yes"}', "[true]", '{"ok":true}\nlast words', '{"ok":false}', "[" * 24_000]
)
def test_exit_code_zero_without_a_result_is_no_success(stdout: str) -> None:
    with pytest.raises(errors.ScriptAnswerInvalid):
        conclude(ended("Success", code=0, stdout=stdout))


@pytest.mark.parametrize(("code", "cls"), [(c, e) for c, e in errors.BY_EXIT_CODE.items() if e not in errors.SEND_AGAIN])
def test_an_exit_code_is_its_error_with_the_scripts_own_words(code: int, cls: type[errors.AutojoinError]) -> None:
    line = json.dumps({"ok": False, "error": cls.__name__, "seen": "a", "expected": "b", "todo": "c"})

    with pytest.raises(cls) as raised:
        conclude(ended("Failed", code=code, stdout=line))

    assert type(raised.value) is cls
    assert raised.value.seen.startswith("a [command c-1")
    assert raised.value.expected == "b"
    assert "aws ssm get-command-invocation --command-id c-1 --instance-id i-1" in raised.value.todo


@pytest.mark.parametrize("code", [c for c, e in errors.BY_EXIT_CODE.items() if e in errors.SEND_AGAIN])
def test_what_the_script_may_be_sent_again_for_is_no_error(code: int) -> None:
    assert conclude(ended("Failed", code=code)) is None


@pytest.mark.parametrize("code", [1, 2, 126, 127, 137, 255])
def test_an_exit_code_without_a_class_is_a_failed_script_that_shows_its_last_words(code: int) -> None:
    with pytest.raises(errors.ScriptFailed, match="no such file"):
        conclude(ended("Failed", code=code, stderr="bash: no such file"))


@pytest.mark.parametrize(
    ("status", "details", "cls"),
    [
        ("TimedOut", "Delivery Timed Out", errors.ScriptUndelivered),
        ("TimedOut", "DeliveryTimedOut", errors.ScriptUndelivered),
        ("TimedOut", "Execution Timed Out", errors.ScriptTimedOut),
        ("TimedOut", "ExecutionTimedOut", errors.ScriptTimedOut),
        ("Failed", "Undeliverable", errors.ScriptUndelivered),
        ("Failed", "Terminated", errors.ScriptUndelivered),
        ("Failed", "Invalid Platform", errors.ScriptUndelivered),
        ("Failed", "AccessDenied", errors.ScriptUndelivered),
        ("Cancelled", "Cancelled", errors.ScriptCancelled),
    ],
)
def test_an_end_that_is_not_the_scripts_own_has_a_name_of_its_own(status: str, details: str, cls: type[Exception]) -> None:
    with pytest.raises(cls):
        conclude(ended(status, details=details, code=14, stdout=OK))


def test_a_long_output_is_cut_to_its_end() -> None:
    with pytest.raises(errors.ScriptFailed) as raised:
        conclude(ended("Failed", code=1, stderr="x" * 9000 + "the end"))

    assert len(str(raised.value)) < 1000
    assert "the end" in str(raised.value)


@pytest.mark.parametrize("status", ["Pending", "InProgress", "Delayed", "Cancelling"])
def test_a_command_that_may_still_change_is_not_ended(status: str) -> None:
    assert not ended(status).is_terminal
