"""The hyperkube stand-in: which process it is stands in its first argument, as in Arktos."""

from __future__ import annotations

import sys

PROCESSES = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "flanneld", "arktos-network-controller",
)  # fmt: skip


def main(argv: list[str]) -> None:
    """Run the process that argv names; its modules are imported only then."""
    if not argv or argv[0] not in PROCESSES:
        print(f"hyperkube: expected one of {', '.join(PROCESSES)}", file=sys.stderr)
        sys.exit(2)
    process, flags = argv[0], argv[1:]
    if process == "kube-apiserver":
        import api_server
        from client import parse_flags

        api_server.main(parse_flags(flags))
    elif process in ("kube-controller-manager", "kube-scheduler", "arktos-network-controller"):
        import control

        control.main(process, flags)
    else:
        import node

        node.main(process, flags)


if __name__ == "__main__":
    main(sys.argv[1:])
