"""What an operator puts on a master by hand: kubeconfigs by partition, units of etcd, API server, controllers, and an RP's node.

Only texts are made here; who writes and starts them is `handmade` on a fleet and `bench` without a region. Flags are those
that carry the topology in Arktos' own scale-out scripts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

API_UNITS = ("arktos-etcd", "arktos-apiserver")
"""What has to answer before the rest of a partition is started, on any master."""
UNIT = """[Unit]
Description={name}

[Service]
Environment={environment}
ExecStart={command}
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Partition:
    """A partition with one master. `cidr`: an RP's pod range or a TP's service range."""

    id: str
    kind: str
    cidr: str
    instance_id: str
    address: str
    cni_backend: str = "host-gw"


def kubeconfig(partition: str, zone: str) -> str:
    """A kubeconfig without credentials, by the partition's name."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": partition,
            "clusters": [{"name": partition, "cluster": {"server": f"http://api.{partition}.{zone}:8080"}}],
            "contexts": [{"name": partition, "context": {"cluster": partition, "user": partition}}],
            "users": [{"name": partition, "user": {}}],
        }
    )


def files(root: Path, own: Partition, all_partitions: Sequence[Partition], zone: str, cluster: str) -> dict[Path, str]:
    """Path to text of everything on the master of `own` whose AUTOJOIN_ROOT is `root`."""
    config = root / "etc/arktos"
    made = {config / f"{p.id}.kubeconfig": kubeconfig(p.id, zone) for p in all_partitions}
    peers = ",".join(str(config / f"{p.id}.kubeconfig") for p in all_partitions if p.kind != own.kind)
    commands = _control_plane(root, own, peers, cluster)
    environments: Mapping[str, str] = {}
    if own.kind == "rp":
        mine = config / f"{own.id}.kubeconfig"
        net_conf = {"Network": own.cidr, "Backend": {"Type": own.cni_backend}}
        proxy = {"clientConnection": {"kubeconfig": str(mine)}, "tenantPartitionKubeConfig": peers, "hostnameOverride": own.instance_id}
        made |= {
            config / "net-conf.json": json.dumps(net_conf),
            config / "kube-proxy.yaml": json.dumps(proxy),
            root / "etc/cni/net.d/10-flannel.conflist": json.dumps({"name": "cbr0", "plugins": [{"type": "flannel"}]}),
        }
        commands |= _node(root, own, peers, zone)
        environments = {"arktos-flanneld": f"NODE_NAME={own.instance_id}"}
    for name, command in commands.items():
        text = UNIT.format(name=name, command=" ".join(command), environment=environments.get(name, f"PARTITION={own.id}"))
        made[root / f"etc/systemd/system/{name}.service"] = text
    return made


def _control_plane(root: Path, own: Partition, peers: str, cluster: str) -> dict[str, list[str]]:
    binaries = root / "opt/arktos/bin"
    hyperkube, mine = f"{binaries}/hyperkube", f"--kubeconfig={root}/etc/arktos/{own.id}.kubeconfig"
    client, peer = f"http://{own.address}:2379", f"http://{own.address}:2380"
    commands = {
        "arktos-etcd": [
            f"{binaries}/etcd", "--name", own.instance_id, "--data-dir", f"{root}/var/lib/etcd",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"{own.instance_id}={peer}", "--initial-cluster-state", "new",
            "--initial-cluster-token", f"{cluster}-{own.id}", "--log-level", "warn",
        ],
        "arktos-apiserver": [
            hyperkube, "kube-apiserver", f"--etcd-servers={client}", f"--insecure-bind-address={own.address}", "--insecure-port=8080",
            *([f"--service-cluster-ip-range={own.cidr}"] if own.kind == "tp" else []),
        ],
    }  # fmt: skip
    controllers = [hyperkube, "kube-controller-manager", mine, "--leader-elect=false"]
    if own.kind == "tp":
        commands["arktos-kube-controller-manager"] = [
            *controllers, "--controllers=*,-daemonset,-nodelifecycle,-nodeipam,-ttl", f"--resource-providers={peers}",
        ]  # fmt: skip
        commands["arktos-kube-scheduler"] = [hyperkube, "kube-scheduler", mine, "--leader-elect=false", f"--resource-providers={peers}"]
    else:
        commands["arktos-kube-controller-manager"] = [
            *controllers, "--controllers=nodelifecycle,nodeipam,ttl,serviceaccount,serviceaccount-token",
            f"--tenant-server-kubeconfig={peers}", "--allocate-node-cidrs=true", f"--cluster-cidr={own.cidr}",
        ]  # fmt: skip
    return commands


def _node(root: Path, own: Partition, peers: str, zone: str) -> dict[str, list[str]]:
    binaries, config = root / "opt/arktos/bin", root / "etc/arktos"
    hyperkube = f"{binaries}/hyperkube"
    return {
        "arktos-kubelet": [
            hyperkube, "kubelet", f"--hostname-override={own.instance_id}", f"--node-ip={own.address}",
            f"--kubeconfig={config}/{own.id}.kubeconfig", f"--tenant-server-kubeconfig={peers}", f"--root-dir={root}/var/lib/kubelet",
        ],
        "arktos-flanneld": [
            f"{binaries}/flanneld", f"--iface={own.address}", "--ip-masq", "--kube-subnet-mgr",
            f"--kube-api-url=http://api.{own.id}.{zone}:8080", f"--net-config-path={config}/net-conf.json",
            f"--subnet-file={root}/run/flannel/subnet.env",
        ],
        "arktos-kube-proxy": [hyperkube, "kube-proxy", f"--config={config}/kube-proxy.yaml"],
    }  # fmt: skip
