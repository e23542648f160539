"""Function membership: decides foundings and writes them down. Operations: Member, Formed (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations.membership import Formed, Member
from autojoin.use_cases.founding import formed, member

lambda_handler = handler_for({Member: member, Formed: formed}, ports)
