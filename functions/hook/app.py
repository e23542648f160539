"""Function hook: the only one that completes lifecycle actions. Operations: Complete, Abandon (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations.hook import Abandon, Complete
from autojoin.use_cases.abandonment import abandon
from autojoin.use_cases.completion import complete

lambda_handler = handler_for({Complete: complete, Abandon: abandon}, ports)
