"""Clients of botocore that reach nobody: answered by a Stubber, or by moto."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.stub import Stubber
from moto import mock_aws

REGION = "eu-central-1"


@cache
def client_of(service: str) -> Any:
    """A client without credentials, made once: reading a service's model is slow."""
    return boto3.client(service, region_name=REGION, config=Config(signature_version=UNSIGNED))


class Stubs:
    """Clients by service, each with its Stubber. `expect` says what is asked next and what is answered."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, Stubber]] = {}

    def client(self, service: str) -> Any:
        if service not in self._made:
            stubber = Stubber(client_of(service))
            stubber.activate()
            self._made[service] = client_of(service), stubber
        return self._made[service][0]

    def expect(self, service: str, method: str, answer: dict[str, Any], asked: dict[str, Any] | None = None) -> None:
        self.client(service)
        self._made[service][1].add_response(method, answer, asked)

    def refuse(self, service: str, method: str, code: str, message: str = "no", status: int = 400, **more: Any) -> None:
        self.client(service)
        self._made[service][1].add_client_error(method, code, message, status, modeled_fields=more or None)

    def close(self) -> None:
        """Raises AssertionError if something expected was not asked."""
        for _, stubber in self._made.values():
            stubber.deactivate()
        for _, stubber in self._made.values():
            stubber.assert_no_pending_responses()


@pytest.fixture(scope="module")
def region() -> Iterator[None]:
    """moto in the place of AWS."""
    with mock_aws():
        yield


@pytest.fixture
def stubs() -> Iterator[Stubs]:
    made = Stubs()
    yield made
    made.close()
