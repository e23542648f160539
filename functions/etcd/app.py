"""Function etcd: the only one in the VPC; speaks to etcd and to nothing else. Operation: Synced (see statemachine/README.md)."""

from autojoin.bootstrap import ports
from autojoin.entrypoint import handler_for
from autojoin.events.operations.etcd import Synced
from autojoin.use_cases.waiting import synced

lambda_handler = handler_for({Synced: synced}, ports)
