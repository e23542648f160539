"""Function command: the only one that sends commands. Operations: StartEtcd … RemoveNode (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations.command import Join, LeaveNode, RemoveNode, StartApi, StartEtcd, StopCommands, Verify
from autojoin.use_cases.commanding import join, leave_node, remove_node, start_api, start_etcd, stop_commands, verify

lambda_handler = handler_for(
    {
        StartEtcd: start_etcd,
        StartApi: start_api,
        Join: join,
        Verify: verify,
        LeaveNode: leave_node,
        RemoveNode: remove_node,
        StopCommands: stop_commands,
    },
    ports,
)
