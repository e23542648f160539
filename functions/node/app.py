"""Function node: describes instances, plans, holds leases. Operations: Admit, Preflight, TakeOver (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations.node import Admit, Preflight, TakeOver
from autojoin.use_cases.admission import admit
from autojoin.use_cases.preflight import preflight
from autojoin.use_cases.rollback import take_over

lambda_handler = handler_for({Admit: admit, Preflight: preflight, TakeOver: take_over}, ports)
