"""Function command: the only one that sends commands. Operations: Join, Verify, LeaveNode, RemoveNode, StopCommands."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations import Join, LeaveNode, RemoveNode, StopCommands, Verify
from autojoin.use_cases.commanding import join, leave_node, remove_node, stop_commands, verify

lambda_handler = handler_for(
    {Join: join, Verify: verify, LeaveNode: leave_node, RemoveNode: remove_node, StopCommands: stop_commands}, ports
)
