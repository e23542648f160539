"""Function intake: starts our state machines and nothing else. Events: launch actions, ended joins. Operation: HandOver."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.eventbridge import JoinEnded, LaunchAction
from autojoin.events.operations.intake import HandOver
from autojoin.use_cases.intake import hand_over, join_ended, launch_action

lambda_handler = handler_for({LaunchAction: launch_action, JoinEnded: join_ended, HandOver: hand_over}, ports)
