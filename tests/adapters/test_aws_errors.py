"""What AWS answers is an error of the closed set, by its code, in one place."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.retries import standard

from autojoin import errors
from autojoin.adapters.aws import CONFIG, OWN_FAULT, THROTTLED, translated


def answered(code: str, status: int = 400, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Op")


def ours(error: Exception) -> errors.AutojoinError:
    with pytest.raises(errors.AutojoinError) as raised:
        with translated("svc:Action"):
            raise error
    return raised.value


@pytest.mark.parametrize("code", sorted(THROTTLED | set(standard.ThrottledRetryableChecker._THROTTLED_ERROR_CODES)))
def test_what_botocore_takes_for_throttling_is_throttling(code: str) -> None:
    assert type(ours(answered(code))) is errors.AwsThrottled


@pytest.mark.parametrize("code", sorted(OWN_FAULT | set(standard.TransientRetryableChecker._TRANSIENT_ERROR_CODES) - THROTTLED))
def test_what_fails_on_the_side_of_aws_is_unavailable_whatever_its_status(code: str) -> None:
    assert type(ours(answered(code))) is errors.AwsUnavailable


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_unknown_code_with_a_status_of_five_hundred_is_unavailable(status: int) -> None:
    assert type(ours(answered("Whatever", status))) is errors.AwsUnavailable


@pytest.mark.parametrize("code", ["AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "ValidationException", "Whatever", ""])
def test_what_is_denied_or_not_valid_is_refused_and_names_the_action(code: str) -> None:
    error = ours(answered(code, message="not authorized"))

    assert type(error) is errors.AwsRefused
    assert str(error).startswith(f"seen: svc:Action answered {code}: not authorized")


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="https://example"),
        ConnectTimeoutError(endpoint_url="https://example"),
        ReadTimeoutError(endpoint_url="https://example"),
        BotoCoreError(),
    ],
)
def test_an_aws_that_cannot_be_reached_is_unavailable(error: BotoCoreError) -> None:
    assert type(ours(error)) is errors.AwsUnavailable


def test_a_call_that_cannot_even_be_sent_is_never_tried_again() -> None:
    error = ours(ParamValidationError(report="Invalid length for parameter Filters"))

    assert type(error) is errors.AwsRefused


def test_a_code_with_a_more_exact_meaning_goes_through_as_it_is() -> None:
    with pytest.raises(ClientError, match="Special"):
        with translated("svc:Action", unless=frozenset({"Special"})):
            raise answered("Special")


def test_an_error_of_ours_and_a_defect_go_through_as_they_are() -> None:
    for error in (errors.HookOver("a", "b", "c"), KeyError("x")):
        with pytest.raises(type(error)):
            with translated("svc:Action"):
                raise error


def test_all_tries_of_a_call_together_end_within_the_shortest_function() -> None:
    tries = CONFIG.retries["total_max_attempts"] if "total_max_attempts" in CONFIG.retries else CONFIG.retries["max_attempts"]

    assert tries == 3
    assert CONFIG.connect_timeout + CONFIG.read_timeout < 20
