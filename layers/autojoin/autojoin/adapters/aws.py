"""boto3 clients with our time-outs, and AWS's error codes as errors of the closed set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from autojoin import errors

CONFIG = Config(retries={"mode": "standard", "max_attempts": 3}, connect_timeout=3, read_timeout=8)
"""Three tries inside a call; longer waits are the state machine's."""

THROTTLED = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestLimitExceeded",
        "TooManyRequestsException",
        "TooManyUpdates",
        "ProvisionedThroughputExceededException",
        "RequestThrottled",
        "RequestThrottledException",
        "LimitExceededException",
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "SlowDown",
        "TransactionInProgressException",
        "ResourceContention",
        "TransactionConflictException",
    }
)
OWN_FAULT = frozenset(
    {
        "InternalFailure",
        "InternalServerError",
        "InternalError",
        "ServiceUnavailable",
        "Unavailable",
        "RequestTimeout",
        "RequestTimeoutException",
    }
)


def client(service: str) -> Any:
    """A boto3 client of the function's own role and region."""
    return boto3.client(service, config=CONFIG)  # type: ignore[call-overload]


def code_of(error: ClientError) -> str:
    """AWS's error code."""
    return str(error.response.get("Error", {}).get("Code", ""))


def message_of(error: ClientError) -> str:
    """AWS's error message."""
    return str(error.response.get("Error", {}).get("Message", ""))


@contextmanager
def translated(action: str, unless: frozenset[str] = frozenset()) -> Iterator[None]:
    """Raise AwsThrottled, AwsUnavailable or AwsRefused for what AWS answers to `action` (its IAM name).

    unless  codes whose ClientError goes through as it is: the adapter gives them a more exact meaning
    """
    try:
        yield
    except ClientError as error:
        if code_of(error) in unless:
            raise
        raise as_ours(error, action) from error
    except ParamValidationError as error:
        raise errors.AwsRefused(
            f"{action} was not sent: {error}", "parameters that the API takes", "report it: Autojoin made the call"
        ) from error
    except BotoCoreError as error:
        raise errors.AwsUnavailable(f"{action}: {error}", "an answer of AWS", "nothing: it is tried again") from error


def as_ours(error: ClientError, action: str) -> errors.AutojoinError:
    """The error of the closed set for a ClientError that has no more exact meaning."""
    code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    seen = f"{action} answered {code}: {message_of(error)}"
    if code in THROTTLED:
        return errors.AwsThrottled(seen, "an answer within the rate", "nothing: it is tried again")
    if code in OWN_FAULT or status >= 500:
        return errors.AwsUnavailable(seen, "an answer of AWS", "nothing: it is tried again")
    return errors.AwsRefused(seen, "the call to be allowed and valid", "compare the function's role in template.yaml with what is deployed")
