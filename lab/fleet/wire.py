"""The query protocols of EC2 and Auto Scaling, spoken from botocore's own models: parameters in, XML out.

Because the model is the one boto3 uses, an answer is exactly what a client can read, and a parameter that the model does
not know is refused instead of ignored.
"""

from __future__ import annotations

import datetime
import functools
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import botocore.session
from botocore.model import ListShape, OperationModel, ServiceModel, Shape, StructureShape

Answer = tuple[int, dict[str, str], bytes]


class ApiError(Exception):
    """An error of an AWS API: the code and message that the caller gets."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


@functools.cache
def service_model(service: str) -> ServiceModel:
    """botocore's model of a service."""
    return botocore.session.get_session().get_service_model(service)


def flat(body: bytes | str, query: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The parameters of a query request, one text each."""
    text = body.decode("utf-8", errors="replace") if isinstance(body, bytes) else body
    given: dict[str, Any] = {**(query or {}), **parse_qs(text, keep_blank_values=True)}
    return {key: (value[0] if isinstance(value, list) else str(value)) for key, value in given.items()}


def parse(operation: OperationModel, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The input of an operation as boto3's caller gave it. Raises ApiError ValidationError for what does not fit."""
    if operation.input_shape is None:
        return {}
    known: set[str] = {"Action", "Version"}
    result = _parse_structure(operation.input_shape, "", parameters, known)
    unknown = sorted(key for key in parameters if key not in known and not key.startswith(("X-Amz-", "AWSAccessKeyId", "Signature")))
    if unknown:
        raise ApiError("ValidationError", f"the lab does not know the parameter(s) {', '.join(unknown)} of {operation.name}")
    for name in operation.input_shape.required_members:
        if name not in result:
            raise ApiError(
                "ValidationError",
                f"1 validation error detected: Value null at '{name[:1].lower() + name[1:]}' failed to satisfy constraint: "
                "Member must not be null",
            )
    return result


def _parse_structure(shape: StructureShape, prefix: str, parameters: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    result = {}
    for name, member in shape.members.items():
        found, value = _parse(member, f"{prefix}{name}", parameters, known)
        if found:
            result[name] = value
    return result


def _parse(shape: Shape, key: str, parameters: Mapping[str, str], known: set[str]) -> tuple[bool, Any]:
    if isinstance(shape, StructureShape):
        if not any(name.startswith(f"{key}.") for name in parameters):
            return False, None
        return True, _parse_structure(shape, f"{key}.", parameters, known)
    if isinstance(shape, ListShape):
        if parameters.get(key) == "":
            known.add(key)
            return True, []
        items: list[Any] = []
        while True:
            found, value = _parse(shape.member, f"{key}.member.{len(items) + 1}", parameters, known)
            if not found:
                return bool(items), items
            items.append(value)
    if key not in parameters:
        return False, None
    known.add(key)
    return True, _scalar(shape, key, parameters[key])


def _scalar(shape: Shape, key: str, text: str) -> Any:
    if shape.type_name in ("integer", "long"):
        try:
            return int(text)
        except ValueError:
            raise ApiError("ValidationError", f"Value '{text}' at '{key}' is not a number") from None
    if shape.type_name == "boolean":
        return text.lower() == "true"
    return text


def answer(operation: OperationModel, result: Mapping[str, Any], request_id: str | None = None) -> Answer:
    """The answer of a query (Auto Scaling) or ec2 operation as status, headers and body."""
    model = operation.service_model
    namespace = model.metadata.get("xmlNamespace") or f"http://ec2.amazonaws.com/doc/{model.metadata['apiVersion']}/"
    request_id = request_id or str(uuid.uuid4())
    shape = operation.output_shape
    inner = _structure_xml(shape, result) if shape is not None else ""
    if model.metadata["protocol"] == "ec2":
        inner = f"{inner}<requestId>{request_id}</requestId>"
    else:
        wrapper = (shape.serialization.get("resultWrapper") if shape is not None else None) or f"{operation.name}Result"
        inner = f"<{wrapper}>{inner}</{wrapper}><ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    root = f"{operation.name}Response"
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{namespace}">{inner}</{root}>'
    return 200, {"Content-Type": "text/xml"}, text.encode()


def error_answer(service: str, error: ApiError) -> Answer:
    """An error as status, headers and body."""
    code, message, request_id = escape(error.code), escape(error.message), uuid.uuid4()
    if service == "ec2":
        text = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>"
        )
    else:
        namespace = service_model(service).metadata["xmlNamespace"]
        text = (
            f'<ErrorResponse xmlns="{namespace}"><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>'
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    return error.status, {"Content-Type": "text/xml"}, text.encode()


def xml(shape: Shape, name: str, value: Any) -> str:
    """One value of a model's shape as an XML element."""
    if isinstance(shape, StructureShape):
        return f"<{name}>{_structure_xml(shape, value)}</{name}>"
    if isinstance(shape, ListShape):
        item = shape.member.serialization.get("name", "member")
        if shape.serialization.get("flattened"):
            return "".join(xml(shape.member, name, one) for one in value)
        return f"<{name}>{''.join(xml(shape.member, item, one) for one in value)}</{name}>"
    return f"<{name}>{escape(_text(value))}</{name}>"


def _structure_xml(shape: StructureShape, value: Mapping[str, Any]) -> str:
    unknown = set(value) - set(shape.members)
    if unknown:
        raise ValueError(f"{shape.name} has no member {sorted(unknown)}")
    parts = []
    for name, member in shape.members.items():
        if value.get(name) is not None:
            parts.append(xml(member, member.serialization.get("name", name), value[name]))
    return "".join(parts)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return str(value)
