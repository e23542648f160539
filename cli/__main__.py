"""`autojoin adopt GROUP` and `autojoin enroll GROUP`: what an operator does once for a group, shown first and done with --apply.

Exit code 0: done, shown, or nothing to do. 1: refused, with what was seen, what was expected and what to do. 2: usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from autojoin import errors
from autojoin.domain.identity import ClusterName, Identity, PartitionId, Role
from autojoin.domain.plan import SUPPORTED_ROLES
from autojoin.ports import OperatorPorts
from autojoin.use_cases.adoption import Claim, adopt
from autojoin.use_cases.enrolment import Planned, enroll
from cli.view import Json, Lines

ROLES = sorted(role.value for role in SUPPORTED_ROLES)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("group", metavar="GROUP", help="name of the Auto Scaling group")
    common.add_argument("--stack", default="autojoin", help="name of Autojoin's stack (default: autojoin)")
    common.add_argument("--apply", action="store_true", help="make the changes; without it they are only shown")
    common.add_argument("--json", action="store_true", help="print one JSON object")
    made = argparse.ArgumentParser(prog="autojoin", description="What an operator of Autojoin does once for a group.")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    adopting = commands.add_parser("adopt", parents=[common], help="take over a group whose instances were made members by hand")
    adopting.add_argument("--cluster", help="name of the cluster (default: as the tags say)")
    adopting.add_argument("--partition", help="id of the partition (default: as the tags say)")
    adopting.add_argument("--role", choices=ROLES, help="what the instances are (default: as the tags say)")
    adopting.add_argument("--zone-id", help="Route 53 id of the cluster's zone, where its declaration has none")
    adopting.add_argument("--etcd-url", help="client URL of the master's etcd (default: http://<its address>:2379)")
    adopting.add_argument("--cert-dir", help="folder of the master's keys (default: /var/run/kubernetes)")
    enrolling = commands.add_parser("enroll", parents=[common], help="make an empty group Autojoin's")
    enrolling.add_argument("--cluster", required=True, help="name of the cluster")
    enrolling.add_argument("--partition", required=True, help="id of the partition")
    enrolling.add_argument("--role", required=True, choices=ROLES, help="what its instances will be")
    return made


def run(arguments: Sequence[str], ports_of: Callable[[str], OperatorPorts], out: TextIO, err: TextIO) -> int:
    """Run the command on the ports of the stack that it names; returns the exit code, or exits with 2."""
    options = parser().parse_args(arguments)
    view = Json(out) if options.json else Lines(out, err)
    try:
        planned = _plan(options, ports_of(options.stack))
        view.planned(planned, applies=options.apply)
        for change in planned.changes if options.apply else ():
            change.do()
            view.done(change)
    except errors.AutojoinError as error:
        view.refused(error)
        return 1
    finally:
        view.end()
    return 0


def _plan(options: argparse.Namespace, ports: OperatorPorts) -> Planned:
    if options.command == "enroll":
        return enroll(options.group, Identity(ClusterName(options.cluster), Role(options.role), PartitionId(options.partition)), ports)
    claim = Claim(options.cluster, options.partition, options.role, options.zone_id, options.etcd_url, options.cert_dir)
    return adopt(options.group, claim, ports)


def main() -> int:
    """The process's arguments, on AWS."""
    from cli.ports import ports_of

    return run(sys.argv[1:], ports_of, sys.stdout, sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
