"""Function wait: looks for what nobody announces. Operation: AwaitAgent (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations.wait import AwaitAgent
from autojoin.use_cases.waiting import await_agent

lambda_handler = handler_for({AwaitAgent: await_agent}, ports)
