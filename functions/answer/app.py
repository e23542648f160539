"""Function answer: answers the task that waits for a command. Event: a command of ours ended on an instance."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.eventbridge import CommandEnded
from autojoin.use_cases.answering import command_ended

lambda_handler = handler_for({CommandEnded: command_ended}, ports)
