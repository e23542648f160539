"""The demo: real `sam build` and `sam deploy`, workers that join by themselves, one re-joined by hand, one that fails.

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

    def play(self) -> bool:
        """Play every act; True only if all was seen. An act that fails ends the demo."""
        self.began_at = time.time()
        self.lab.observer.remember()
        try:
            with view.follow(self.lab.journal, self.console):
                self._workers_join()
                self._pods_run_and_reach_each_other()
                self._rejoin_by_hand()
                self._one_join_fails()
        except NotSeen:
            pass
        self._tell()
        return all(held for _, held in self.seen)

    # -- acts --------------------------------------------------------------------------------------------------------

    def _workers_join(self) -> None:
        self._scale(2)
        with self._act("the group of workers grew from 0 to 2, both nodes joined by themselves"):
            self._until(lambda: len(self.lab.in_service(self.group)) == 2, JOIN_S, "2 instances in service")
            for instance_id in self.lab.in_service(self.group):
                node = self.lab.node(instance_id)
                self._need(node is not None and node.ready and not node.tainted, f"Node {instance_id} is Ready without the taint")

    def _pods_run_and_reach_each_other(self) -> None:
        nodes = self.lab.in_service(self.group)
        tenants = self._tenants()
        addresses: dict[tuple[str, str], str] = {}
        with self._act(f"a pod of each TP ({', '.join(tenants)}) runs on each new node"):
            for tenant, api in tenants.items():
                self._call(api, "POST", SERVICES, _service())
                for node in nodes:
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
        with self._act("a service of each TP answers on its ClusterIP from each new node"):
            for api in tenants.values():
                address = self._call(api, "GET", f"{SERVICES}/demo")["spec"]["clusterIP"]
                for node in nodes:
                    self._curl(node, f"http://{address}:80/", f"ClusterIP {address}")

    def _rejoin_by_hand(self) -> None:
        instance_id = self.lab.in_service(self.group)[0]
        with self._act(f'{instance_id} was re-joined by a start with {{"instance_id": "{instance_id}"}}'):
            arn = self.lab.start_execution("join", {"instance_id": instance_id})
            ended = self._until(lambda: self._ended(arn), JOIN_S, "the execution ends")
            self._need(ended["status"] == "SUCCEEDED", f"it succeeded: {ended['status']} {ended.get('error')} {ended.get('cause')}")
            node = self.lab.node(instance_id)
            self._need(node is not None and node.ready and not node.tainted, f"Node {instance_id} is Ready again")

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

    def _scale(self, desired: int) -> None:
        self.lab.region.client("autoscaling").set_desired_capacity(AutoScalingGroupName=self.group, DesiredCapacity=desired)

    def _tenants(self) -> dict[str, str]:
        roles = {i.instance_id: i.tags for i in list(self.lab.fleet.instances.values())}
        return {
            name: self.lab.fleet.instances[instance_id].address
            for name, instance_id in self.lab.masters.items()
            if roles[instance_id].get("autojoin:role") == "tp"
        }

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
        with Lab(folder, fresh_build=True, say=say) as lab:
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
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"demo-{node}", "namespace": "default", "tenant": "system", "labels": {"app": "demo"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "demo", "image": IMAGE, "ports": [{"containerPort": 8080}]}],
        },
    }


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "demo", "namespace": "default", "tenant": "system"},
        "spec": {"selector": {"app": "demo"}, "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]},
    }
