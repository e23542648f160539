"""Function names: records and load-balancer targets. Operations: ApiName, FrontDoor, RemoveNames (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations.names import ApiName, FrontDoor, RemoveNames
from autojoin.use_cases.naming import api_name, front_door, remove_names

lambda_handler = handler_for({ApiName: api_name, FrontDoor: front_door, RemoveNames: remove_names}, ports)
