"""Names on a node: what the VPC's resolver would answer, for curl (a .curlrc) and for stand-ins (hosts.json).

ministack's Route 53 answers no DNS queries and the lab has no resolver of its own. `render` writes two files per node:
* <root>/run/lab/hosts.json: {"names": {"api.rp1.demo.arktos.internal": ["127.20.0.10", …]}}, what the private zones of the
  node's VPC (and the public zones) hold in A and CNAME records;
* <root>/root/.curlrc: the fragments of <root>/run/lab/curl.d/*.conf, then one `resolve` line per name and known port, then
  `interface`, so that a node dials with its own address.
`Resolver` gives python stand-ins the same answers. This module imports nothing but the standard library at load.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOSTS = "run/lab/hosts.json"
FRAGMENTS = "run/lab/curl.d"
CURLRC = "root/.curlrc"
NOWHERE = "127.255.255.254"
"""An address on which nothing listens."""
PORTS = (80, 443, 2379, 2380, 6443, 8080, 10250)
"""Ports for which curl is told the addresses: a `resolve` line names one port each."""


def render(root: Path | str, region: Any = None, vpc_id: str | None = None) -> None:
    """Write the two files of the node whose AUTOJOIN_ROOT is `root`.

    region   where the zones are read; None (in a process that is not the lab's) keeps the names that are there
    vpc_id   the node's VPC, None to take every zone
    """
    root = Path(root)
    if region is not None:
        _write(root / HOSTS, json.dumps({"names": zone_names(vpc_id)}, indent=1, sort_keys=True))
    lines = []
    fragments = root / FRAGMENTS
    if fragments.is_dir():
        for fragment in sorted(fragments.glob("*.conf")):
            lines += fragment.read_text(encoding="utf-8").splitlines()
    for name, addresses in sorted(Resolver(root).names().items()):
        lines += [f'resolve = "{name}:{port}:{",".join(addresses)}"' for port in PORTS]
    # A declared name without a record leads nowhere here; curl would ask the machine's own resolver for it.
    known = Resolver(root).names()
    for name in declared_names() if region is not None else []:
        if name not in known:
            lines += [f'resolve = "{name}:{port}:{NOWHERE}"' for port in PORTS]
    address = root / "run/lab/address"
    if address.is_file():
        lines.append(f'interface = "{address.read_text(encoding="utf-8").strip()}"')
    _write(root / CURLRC, "".join(f"{line}\n" for line in lines))


class Resolver:
    """Names as a node sees them; looks at the file again when it changed."""

    def __init__(self, root: Path | str) -> None:
        self._path = Path(root) / HOSTS
        self._seen: tuple[int, int] | None = None
        self._names: dict[str, list[str]] = {}

    def names(self) -> dict[str, list[str]]:
        """Every known name, without final dot, with its addresses."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._seen:
                self._names = json.loads(self._path.read_text(encoding="utf-8"))["names"]
                self._seen = (stat.st_mtime_ns, stat.st_ino)
        except FileNotFoundError:
            self._names = {}
        return self._names

    def resolve(self, name: str) -> list[str]:
        """The addresses of a name, an address being its own; an empty list for a name that does not exist."""
        if name.replace(".", "").isdigit():
            return [name]
        return list(self.names().get(name.rstrip(".").lower(), []))


def zone_names(vpc_id: str | None) -> dict[str, list[str]]:
    """Name → addresses of the region's Route 53, as an instance of the VPC resolves them. Only in the lab's process."""
    from ministack.services import route53

    addresses: dict[str, list[str]] = {}
    aliases: dict[str, str] = {}
    with route53._lock:
        zones, records = dict(route53._zones.items()), {zone: list(sets) for zone, sets in route53._records.items()}
    for zone_id, zone in zones.items():
        if not _visible(zone, vpc_id):
            continue
        for record in records.get(zone_id, []):
            name = str(record.get("Name", "")).rstrip(".").lower().replace("\\052", "*")
            values = [str(value) for value in record.get("ResourceRecords") or []]
            if record.get("Type") == "A":
                known = addresses.setdefault(name, [])
                known.extend(value for value in values if value not in known)
            elif record.get("Type") == "CNAME" and values:
                aliases[name] = values[0].rstrip(".").lower()
    for name in aliases:
        target, steps = aliases[name], 0
        while target in aliases and steps < 10:
            target, steps = aliases[target], steps + 1
        if target in addresses:
            addresses[name] = addresses[target]
    return {name: sorted(values) for name, values in addresses.items() if values}


def declared_names() -> list[str]:
    """`api.<partition>.<zone>` of every partition that is declared in Parameter Store. Only in the lab's process."""
    from ministack.services import ssm

    values = {name: parameter.get("Value", "") for name, parameter in list(ssm._parameters.items())}
    found = []
    for name in values:
        parts = name.split("/")
        if len(parts) == 5 and parts[1] == "autojoin" and parts[3] == "partitions":
            try:
                zone = json.loads(values[f"/autojoin/{parts[2]}/cluster"])["zone"]
            except (KeyError, ValueError):
                continue
            found.append(f"api.{parts[4]}.{zone}")
    return sorted(found)


def _visible(zone: Mapping[str, Any], vpc_id: str | None) -> bool:
    return vpc_id is None or not zone.get("private") or vpc_id in [vpc.get("VPCId") for vpc in zone.get("vpcs") or []]


def _write(path: Path, text: str) -> None:
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
