"""Function hook: the only one that completes lifecycle actions. Operations: Complete, Abandon (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations import Abandon, Complete
from autojoin.use_cases.completion import complete
from autojoin.use_cases.rollback import abandon

lambda_handler = handler_for({Complete: complete, Abandon: abandon}, ports)
