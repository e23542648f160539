"""The closed set of errors. Step Functions matches the exact class name, so each name stands in a Retry or is caught by States.ALL.

"Not yet" (agent offline, command running) is a result, never an error.
"""

from __future__ import annotations


class AutojoinError(Exception):
    """Base of all. `str()` says what was seen, what was expected and what to do next."""

    def __init__(self, seen: str, expected: str, todo: str) -> None:
        super().__init__(f"seen: {seen}; expected: {expected}; to do: {todo}")
        self.seen, self.expected, self.todo = seen, expected, todo


# -- retryable: the state machines list these names in Retry ---------------------------------------------------------


class AwsThrottled(AutojoinError):
    """An AWS API answered that the rate is exceeded."""


class AwsUnavailable(AutojoinError):
    """An AWS API failed on its side, or could not be reached."""


RETRYABLE: tuple[type[AutojoinError], ...] = (AwsThrottled, AwsUnavailable)


# -- permanent: what the operator, the group or the instance has to change -------------------------------------------


class AwsRefused(AutojoinError):
    """An AWS API refused a call of ours (permission, validation): a defect of the deployment or of ours."""


class InvalidInput(AutojoinError):
    """An event or an execution input that does not fit its model."""


class UnknownInstance(AutojoinError):
    """EC2 does not know the instance id."""


class InstanceGone(AutojoinError):
    """The instance is stopped, shutting down or terminated, or left its group."""


class NotOurs(AutojoinError):
    """The group (or the lone instance) has no tag autojoin:cluster: never touched."""


class TagsMissing(AutojoinError):
    """autojoin:cluster is there, autojoin:role or autojoin:partition is not."""


class TagsContradict(AutojoinError):
    """The instance's tags say something else than its group's."""


class UnknownRole(AutojoinError):
    """autojoin:role is none of the roles."""


class RoleNotSupported(AutojoinError):
    """The role exists, but this version does not join it."""


class StateNotJoinable(AutojoinError):
    """The instance's lifecycle state is none in which a node joins."""


class InWarmPool(AutojoinError):
    """The instance is in, or on its way to, a warm pool: it joins when it is pressed into service."""


class NoHookOfOurs(AutojoinError):
    """The group has no launch hook with NotificationMetadata {"autojoin":1}."""


class SeveralHooksOfOurs(AutojoinError):
    """The group has more than one launch hook with NotificationMetadata {"autojoin":1}."""


class HookTooShort(AutojoinError):
    """The hook's heartbeat time-out is under the shortest that a join can keep alive."""


class HookOver(AutojoinError):
    """The lifecycle action ended: completed, timed out, or the instance went on without us."""


class ConfigurationInvalid(AutojoinError):
    """A parameter under /autojoin/<cluster>/ does not fit its model."""


class PartitionNotConfigured(AutojoinError):
    """The cluster's configuration does not declare the partition, or nothing of the cluster."""


class PartitionKindMismatch(AutojoinError):
    """The partition is of a kind that the role cannot join."""


class CniNotSupported(AutojoinError):
    """A CNI backend that Autojoin does not set up."""


class SubnetNotAdjacent(AutojoinError):
    """host-gw cannot route between the instance's subnet and another node's."""


class Tombstoned(AutojoinError):
    """A leave of this instance has begun; it wins."""


class LeaseLost(AutojoinError):
    """Another execution holds the node's lease now."""


class AgentTooOld(AutojoinError):
    """The SSM agent is too old to pass document parameters as environment variables."""


class AgentNeverOnline(AutojoinError):
    """The SSM agent did not come online in time."""


class NeverQuiet(AutojoinError):
    """A clean-up waited too long for the failed execution's last function."""


class NoMasterOnline(AutojoinError):
    """No master of the partition has an online SSM agent."""


class PartitionNotAdopted(AutojoinError):
    """A running instance carries the partition's tags but nobody recorded it: founding beside it could be a second cluster."""


class PartitionClaimed(AutojoinError):
    """Another living instance claimed the founding of the partition."""


class ReplicasNotSupported(AutojoinError):
    """The partition has its one member; this version adds no second one."""


class ZoneNotConfigured(AutojoinError):
    """The cluster's configuration does not name the hosted zone that the API servers' names go to."""


class TargetGroupUnusable(AutojoinError):
    """A declared target group does not exist, or its targets are neither instances nor addresses."""


class StartEtcdTimedOut(AutojoinError):
    """The script that starts etcd did not end in time."""


class EtcdNeverHealthy(AutojoinError):
    """The node's etcd did not answer as the one member of its cluster in time."""


class StartApiTimedOut(AutojoinError):
    """The script that starts the API server did not end in time."""


class TargetsNeverHealthy(AutojoinError):
    """A target of the node did not become healthy in time."""


class JoinTimedOut(AutojoinError):
    """The join script did not end in time."""


class VerifyTimedOut(AutojoinError):
    """The node did not prove that it works in time."""


class ScriptUndelivered(AutojoinError):
    """The command never reached the instance."""


class ScriptTimedOut(AutojoinError):
    """The script ran longer than its time-out and was killed."""


class ScriptCancelled(AutojoinError):
    """The command was cancelled, by us or by an operator."""


class ScriptAnswerInvalid(AutojoinError):
    """The script ended well but its last line is no result."""


class ScriptFailed(AutojoinError):
    """The script failed in a way that has no class of its own."""


# -- one class per exit code of documents/exit_codes.json -------------------------------------------------------------


class InvalidParameter(AutojoinError):
    """A script was given a parameter that it refuses."""


class BinariesMissing(AutojoinError):
    """The golden image lacks binaries of Arktos."""


class ClientCaMissing(AutojoinError):
    """The RP's client CA is not in Parameter Store, or the instance's role may not read it."""


class ApiUnreachable(AutojoinError):
    """An API server of a partition did not answer the node. The script may be sent again."""


class Busy(AutojoinError):
    """Another run of a script holds the node's lock. The script may be sent again."""


class UnitFailed(AutojoinError):
    """A systemd unit of ours does not stay up."""


class PortInUse(AutojoinError):
    """A port of etcd or the API server is taken by a process that is not ours."""


class NodeNotReady(AutojoinError):
    """The Node is not Ready, keeps its not-ready taint, or has no pod CIDR of its partition."""


class RoutesMissing(AutojoinError):
    """The node lacks routes to other nodes' pods."""


class CanaryFailed(AutojoinError):
    """A pod of a TP did not run, or did not answer, on the node."""


class NodeRefused(AutojoinError):
    """The Node object is not the one that we recorded; it was left alone."""


class EtcdDataForeign(AutojoinError):
    """The node holds etcd data of another cluster; nothing was deleted."""


class QuorumLost(AutojoinError):
    """A formed partition has no living copy of its data where it should be: never founded again, restore it."""


class SecretMissing(AutojoinError):
    """The partition's Kubernetes keys are not in Secrets Manager although its etcd has objects, or may not be read."""


class ClusterIdMismatch(AutojoinError):
    """etcd answers with another cluster id than the partition's."""


class PeersNotSeen(AutojoinError):
    """A TP's scheduler works with fewer resource partitions than are declared and healthy."""


BY_EXIT_CODE: dict[int, type[AutojoinError]] = {
    10: InvalidParameter,
    11: BinariesMissing,
    12: ClientCaMissing,
    13: SubnetNotAdjacent,
    14: ApiUnreachable,
    15: Busy,
    16: UnitFailed,
    17: PortInUse,
    20: NodeNotReady,
    21: RoutesMissing,
    22: CanaryFailed,
    23: NodeRefused,
    24: EtcdDataForeign,
    25: QuorumLost,
    26: SecretMissing,
    27: ClusterIdMismatch,
    28: PeersNotSeen,
}
SEND_AGAIN: tuple[type[AutojoinError], ...] = (ApiUnreachable, Busy)
