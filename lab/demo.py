"""The demo: real `sam build` and `sam deploy`, a cluster that comes up from three empty groups, a re-join by hand, a join that fails.

It believes nothing that it has not seen: each check looks at the nodes, the pods and the region, and the demo fails if one fails.
"""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from lab import view
from lab.lab import Lab, LabError
from lab.loopback import ask
from lab.observer import report as reports
from lab.observer.invariants import gone_instances, judge

JOIN_S = 240.0
CHECK_S = 60.0
SPREAD = 10
"""Pods without a wish for a node."""
PODS = "/api/v1/tenants/system/namespaces/default/pods"
SERVICES = "/api/v1/tenants/system/namespaces/default/services"
IMAGE = "autojoin/canary:1"

Then = Callable[[Lab, bool], None]


class NotSeen(Exception):
    """Something that the demo must show did not happen."""


class Demo:
    """The acts of the demo on a lab that is up, and what was seen in each."""

    def __init__(self, lab: Lab, console: Console, *, check_s: float = CHECK_S) -> None:
        """`check_s`: seconds that a check may take to come true."""
        self.check_s = check_s
        self.lab = lab
        self.console = console
        self.seen: list[tuple[str, bool]] = []
        self.began_at = time.time()
        self.group = lab.workers
        self.groups = {lab.master_groups["tp1"]: 1, lab.master_groups["rp1"]: 1, lab.workers: 2}

    def play(self) -> bool:
        """Play every act; True only if all was seen. An act that fails ends the demo."""
        self.began_at = time.time()
        self.lab.observer.remember()
        try:
            with view.follow(self.lab.journal, self.console):
                self._the_cluster_comes_up()
                self._each_partition_was_founded_once()
                self._pods_run_and_reach_each_other()
                self._pods_spread()
                self._rejoin_by_hand()
                self._one_join_fails()
        except NotSeen:
            pass
        self._tell()
        return all(held for _, held in self.seen)

    # -- acts --------------------------------------------------------------------------------------------------------

    def _the_cluster_comes_up(self) -> None:
        for group, wanted in self.groups.items():
            self._scale(wanted, group)
        with self._act("three empty groups were scaled at once: the masters of tp1 and rp1 and 2 workers joined by themselves"):
            for group, wanted in self.groups.items():
                self._until(partial(self._has_in_service, group, wanted), JOIN_S, f"{wanted} of {group} in service")
        with self._act("all 3 nodes are Ready without the not-ready taint"):
            nodes = [self.lab.masters["rp1"], *self.lab.in_service(self.group)]
            for instance_id in nodes:
                self._until(partial(self._is_ready, instance_id), self.check_s, f"Node {instance_id} is Ready without the taint")

    def _each_partition_was_founded_once(self) -> None:
        with self._act("the etcd of each partition has exactly one cluster id and one member"):
            self.lab.observer.poll()
            summary = reports.etcd_summary(self.lab.journal.entries(since=self.began_at))
            self._need(sorted(summary) == ["rp1", "tp1"], f"etcd of rp1 and tp1: {sorted(summary)}")
            for partition, view in summary.items():
                seen = f"{partition}: {view['cluster_ids']}, {view['members_last']}"
                self._need(len(view["cluster_ids"]) == 1 and len(view["members_last"]) == 1 and not view["changes"], seen)

    def _pods_run_and_reach_each_other(self) -> None:
        nodes = self.lab.in_service(self.group)
        tenants = self._tenants()
        addresses: dict[tuple[str, str], str] = {}
        with self._act(f"a pod of each TP ({', '.join(tenants)}) runs on each new node"):
            for tenant, api in tenants.items():
                for node in nodes:
                    self._call(api, "POST", SERVICES, _service(node))
                    self._call(api, "POST", PODS, _pod(node))
                for node in nodes:
                    running = partial(self._pod_address, api, node)
                    why = partial(self._pod_told, api, node)
                    addresses[tenant, node] = self._until(running, self.check_s, f"pod of {tenant} on {node} runs", why)
        with self._act("each pod answers from every other node (source/destination check is off, routes are there)"):
            for source in [*nodes, self.lab.masters["rp1"]]:
                for (tenant, node), address in addresses.items():
                    if node != source:
                        self._curl(source, f"http://{address}:8080/", f"pod of {tenant} on {node}")
        with self._act("a service whose pod runs on one worker answers on the other, in both directions"):
            for api in tenants.values():
                for node, other in (nodes, nodes[::-1]):
                    address = self._call(api, "GET", f"{SERVICES}/demo-{node}")["spec"]["clusterIP"]
                    self._curl(other, f"http://{address}:80/", f"ClusterIP {address} of the pod on {node}")

    def _pods_spread(self) -> None:
        api = self._tenants()["tp1"]
        with self._act(f"{SPREAD} pods run, both workers have some"):
            for number in range(SPREAD):
                self._call(api, "POST", PODS, _spread_pod(number))
            self._until(lambda: len(self._spread(api)) == SPREAD, self.check_s, f"{SPREAD} pods run", lambda: str(self._spread(api)))
            nodes = self._spread(api)
            self._need(all(node in nodes for node in self.lab.in_service(self.group)), f"pods on both workers: {nodes}")

    def _rejoin_by_hand(self) -> None:
        instance_id = self.lab.in_service(self.group)[0]
        with self._act(f'{instance_id} was re-joined by a start with {{"instance_id": "{instance_id}"}}'):
            arn = self.lab.start_execution("join", {"instance_id": instance_id})
            ended = self._until(lambda: self._ended(arn), JOIN_S, "the execution ends")
            self._need(ended["status"] == "SUCCEEDED", f"it succeeded: {ended['status']} {ended.get('error')} {ended.get('cause')}")
            self._need(self._is_ready(instance_id), f"Node {instance_id} is Ready again")

    def _one_join_fails(self) -> None:
        before = self._etcd()
        self.lab.faults.arm("join_script_fails", group=self.group)
        self._scale(3)
        failed = ""
        with self._act("a join whose script fails was abandoned"):
            failed = self._until(self._abandoned, JOIN_S, "ABANDON")
            self._until(lambda: self._gone(failed), self.check_s, f"{failed} is terminated")
        with self._act("its replacement joined"):
            self._until(lambda: len(self.lab.in_service(self.group)) == 3, JOIN_S, "3 instances in service")
        with self._act(f"nothing names the failed {failed}: Nodes, routes, DNS, targets, table"):
            self._until(lambda: not self._left(), self.check_s, "nothing is left", lambda: "; ".join(self._left()))
        with self._act("the etcd member lists are unchanged"):
            self.lab.observer.poll()
            self._need(self._etcd() == before, f"{self._etcd()} is {before}")

    # -- looking -----------------------------------------------------------------------------------------------------

    def _scale(self, desired: int, group: str = "") -> None:
        client = self.lab.region.client("autoscaling")
        client.set_desired_capacity(AutoScalingGroupName=group or self.group, DesiredCapacity=desired)

    def _has_in_service(self, group: str, wanted: int) -> bool:
        return len(self.lab.in_service(group)) == wanted

    def _is_ready(self, instance_id: str) -> bool:
        node = self.lab.node(instance_id)
        return node is not None and node.ready and not node.tainted

    def _tenants(self) -> dict[str, str]:
        roles = {i.instance_id: i.tags for i in list(self.lab.fleet.instances.values())}
        return {
            name: self.lab.fleet.instances[instance_id].address
            for name, instance_id in self.lab.masters.items()
            if roles[instance_id].get("autojoin:role") == "tp"
        }

    def _spread(self, api: str) -> list[str]:
        """The node of each running pod that wished for none."""
        pods = [self._call(api, "GET", f"{PODS}/spread-{number}") for number in range(SPREAD)]
        return [pod["spec"]["nodeName"] for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]

    def _pod_address(self, api: str, node: str) -> str:
        status = self._call(api, "GET", f"{PODS}/demo-{node}").get("status") or {}
        return str(status.get("podIP") or "") if status.get("phase") == "Running" else ""

    def _pod_told(self, api: str, node: str) -> str:
        pod = self._call(api, "GET", f"{PODS}/demo-{node}")
        return json.dumps({"spec": pod.get("spec"), "status": pod.get("status")})

    def _curl(self, source: str, url: str, what: str) -> None:
        script = f"curl -sS -m 5 --fail {url}"
        answer: list[str] = [""]

        def answers() -> bool:
            done = self.lab.run_on(source, script)
            answer[0] = done.stderr.strip() or done.stdout.strip()
            return done.returncode == 0

        self._until(answers, self.check_s, f"{what} answers {source}", lambda: answer[0])

    def _ended(self, arn: str) -> dict[str, Any] | None:
        entries = [e for e in self.lab.journal.entries("execution") if e["arn"] == arn and e["status"] != "RUNNING"]
        return entries[-1] if entries else None

    def _abandoned(self) -> str:
        for hook in self.lab.hooks(self.began_at):
            if hook.result == "ABANDON":
                return hook.instance_id
        return ""

    def _gone(self, instance_id: str) -> bool:
        return instance_id in gone_instances(self.lab.journal.entries("instance"))

    def _left(self) -> list[str]:
        return [f"{f.where}: {f.what}" for f in self.lab.observer.left_of_gone(self.lab.journal.entries(since=self.began_at))]

    def _etcd(self) -> dict[str, list[str]]:
        summary = reports.etcd_summary(self.lab.journal.entries(since=self.began_at))
        return {partition: view["members_last"] for partition, view in summary.items()}

    def _call(self, address: str, method: str, path: str, body: Any = None) -> Any:
        try:
            return ask(f"http://{address}:8080{path}", body, method=method, timeout_s=10)
        except urllib.error.HTTPError as error:
            if error.code == 404 and method == "GET":
                return {}
            raise NotSeen(f"{method} {path}: {error.code} {error.read()[:200]!r}") from error

    # -- telling -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _act(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.seen.append((f"{what}: {error or type(error).__name__}", False))
            raise NotSeen(what) from error
        self.seen.append((what, True))

    def _need(self, true: bool, what: str) -> None:
        if not true:
            raise NotSeen(f"not seen: {what}")

    def _until(self, look: Callable[[], Any], within_s: float, what: str, seen: Callable[[], str] = lambda: "") -> Any:
        give_up = time.monotonic() + within_s
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > give_up:
                raise NotSeen(f"not seen within {within_s:.0f} s: {what} {seen()}".rstrip())
            time.sleep(0.2)

    def _tell(self) -> None:
        entries = self.lab.journal.entries(since=self.began_at)
        launched = list(dict.fromkeys(e["instance_id"] for e in entries if e["kind"] == "instance" and e["event"] == "launched"))
        view.timelines(entries, launched, self.console)
        broken = judge(self.lab.evidence(self.began_at, entries, self.lab.observer.left_of_gone(entries)))
        said = [f"{name}: {why}" for name, whys in broken.items() for why in whys]
        self.seen.append((f"all {len(broken)} invariants held" if not said else "invariants: " + "; ".join(said), not said))
        self.console.print()
        for what, held in self.seen:
            self.console.print(f"  {'seen    ' if held else 'NOT SEEN'}  {what}", markup=False)


def play(folder: Path, console: Console, then: Then | None = None) -> bool:
    """Bring a lab up in `folder`, play the demo, call `then` with the lab and the outcome, take the lab down."""

    def say(line: str) -> None:
        console.print(f"  {line}", markup=False)

    try:
        with Lab(folder, partitions="empty", fresh_build=True, say=say) as lab:
            seen_all = Demo(lab, console).play()
            took = " + ".join(f"{what} {seconds:.0f} s" for what, seconds in lab.timings.items())
            console.print(f"\n{'The demo saw all that it should.' if seen_all else 'The demo FAILED.'} Start: {took}", markup=False)
            if then:
                then(lab, seen_all)
            return seen_all
    except LabError as error:
        console.print(f"the lab did not come up: {error}", markup=False)
        return False


def _pod(node: str) -> dict[str, Any]:
    """A pod that runs on one node and no other."""
    pinned = _made("Pod", f"demo-{node}")
    pinned["metadata"]["labels"] = {"app": f"demo-{node}"}
    return {**pinned, "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": _containers()}}


def _spread_pod(number: int) -> dict[str, Any]:
    """A pod that runs wherever the scheduler puts it."""
    return {**_made("Pod", f"spread-{number}"), "spec": {"containers": _containers()}}


def _service(node: str) -> dict[str, Any]:
    """A service of the pod of one node."""
    ports = [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]
    return {**_made("Service", f"demo-{node}"), "spec": {"selector": {"app": f"demo-{node}"}, "ports": ports}}


def _made(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default", "tenant": "system"}}


def _containers() -> list[dict[str, Any]]:
    return [{"name": "demo", "image": IMAGE, "ports": [{"containerPort": 8080}]}]
