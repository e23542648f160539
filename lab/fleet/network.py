"""A node's network as `ip` shows and changes it, kept in <root>/run/lab/net.json.

The file is for everybody to read (a stand-in kubelet looks up another node's routes there):
{"address": "127.20.0.10", "prefix": 20, "mac": "02:…",
 "links": {"lo": ["127.0.0.1/8"], "ens5": ["127.20.0.10/20"], "cni0": ["127.20.128.1/24"]},
 "routes": [{"dst": "default", "via": "127.20.0.1", "dev": "ens5"}, {"dst": "127.20.0.0/20", "dev": "ens5"},
            {"dst": "127.20.129.0/24", "via": "127.20.0.11", "dev": "ens5"}]}
Only `ip` writes it. Loopback addresses need no set-up in the kernel; what the kernel would refuse, this refuses with its words.
"""

from __future__ import annotations

import ipaddress
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEVICE = "ens5"
FILE = "run/lab/net.json"

Reply = tuple[int, str, str]
"""Exit code, stdout, stderr."""


class Refused(Exception):
    """What `ip` prints on stderr, and its exit code."""

    def __init__(self, message: str, rc: int = 2) -> None:
        super().__init__(message)
        self.rc = rc


class Network:
    """The network of one node."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._lock = threading.Lock()

    def set_up(self, address: str, subnet: str, mac: str) -> None:
        """What a node has after boot: lo, ens5 with its address, the connected route and the default route."""
        net = ipaddress.ip_network(subnet)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write(
            {
                "address": address,
                "prefix": net.prefixlen,
                "mac": mac,
                "links": {"lo": ["127.0.0.1/8"], DEVICE: [f"{address}/{net.prefixlen}"]},
                "routes": [{"dst": "default", "via": str(net[1]), "dev": DEVICE}, {"dst": str(net), "dev": DEVICE}],
            }
        )

    def read(self) -> dict[str, Any]:
        """The state as it is now."""
        return dict(json.loads(self._path.read_text(encoding="utf-8")))

    def run(self, argv: Sequence[str]) -> Reply:
        """Carry out `ip argv…`."""
        words = [word for word in argv if not word.startswith("-")]
        options = [word for word in argv if word.startswith("-")]
        unknown = [option for option in options if option not in ("-4", "-o", "-oneline", "-family", "-br", "-brief")]
        if unknown:
            return 255, "", f'Option "{unknown[0]}" is unknown to the lab\'s ip.\n'
        target, rest = (words[0] if words else ""), words[1:]
        with self._lock:
            try:
                if target in ("r", "route"):
                    return 0, self._route(rest), ""
                if target in ("a", "addr", "address"):
                    return 0, self._addr(rest, one_line=bool({"-o", "-oneline"} & set(options))), ""
                if target in ("l", "link"):
                    return 0, self._link(rest), ""
                raise Refused(f'Object "{target}" is unknown to the lab\'s ip.', 1)
            except Refused as refused:
                return refused.rc, "", f"{refused}\n"

    # -- objects -------------------------------------------------------------------------------------------------------

    def _route(self, words: list[str]) -> str:
        net = self.read()
        verb, rest = (words[0] if words else "show"), words[1:]
        if verb in ("show", "list", "ls"):
            wanted = _destination(rest[0]) if rest and rest[0] not in ("dev", "via") else None
            device = _after(rest, "dev")
            shown = [
                _route_line(route, net)
                for route in net["routes"]
                if (wanted is None or route["dst"] == wanted) and (device is None or route["dev"] == device)
            ]
            return "".join(f"{line}\n" for line in shown)
        if verb == "get" and rest:
            route = _lookup(net, rest[0])
            via = f" via {route['via']}" if "via" in route else ""
            return f"{rest[0]}{via} dev {route['dev']} src {net['address']} uid 0 \n    cache \n"
        if verb not in ("add", "replace", "del", "delete") or not rest:
            raise Refused(f'Command "{verb}" is unknown, try "ip route help".', 255)
        destination, gateway, device = _destination(rest[0]), _after(rest, "via"), _after(rest, "dev")
        same = [route for route in net["routes"] if route["dst"] == destination]
        if verb in ("del", "delete"):
            gone = [r for r in same if (gateway is None or r.get("via") == gateway) and (device is None or r["dev"] == device)]
            if not gone:
                raise Refused("RTNETLINK answers: No such process")
            net["routes"].remove(gone[0])
        else:
            if verb == "add" and same:
                raise Refused("RTNETLINK answers: File exists")
            new = {"dst": destination, **({"via": gateway} if gateway else {}), "dev": device or _device_of(net, gateway)}
            if new["dev"] not in net["links"]:
                raise Refused(f'Cannot find device "{new["dev"]}"', 1)
            if gateway is not None and not _connected(net, gateway, str(new["dev"])):
                raise Refused("RTNETLINK answers: Network is unreachable")
            net["routes"] = [route for route in net["routes"] if route["dst"] != destination] + [new]
        self._write(net)
        return ""

    def _addr(self, words: list[str], *, one_line: bool) -> str:
        net = self.read()
        verb, rest = (words[0] if words else "show"), words[1:]
        if verb in ("show", "list", "ls"):
            device = _after(rest, "dev") or next((word for word in rest if word not in ("dev", "up", "scope", "global")), None)
            if device is not None and device not in net["links"]:
                raise Refused(f'Device "{device}" does not exist.', 1)
            lines = []
            for index, (name, addresses) in enumerate(net["links"].items(), 1):
                if device not in (None, name):
                    continue
                if not one_line:
                    lines.append(_link_line(index, name))
                for text in addresses:
                    scope = "host" if name == "lo" else "global"
                    broadcast = "" if name == "lo" else f"brd {ipaddress.ip_interface(text).network.broadcast_address} "
                    if one_line:
                        shown = f"{index}: {name}    inet {text} {broadcast}scope {scope} {name}"
                        lines.append(f"{shown}\\       valid_lft forever preferred_lft forever")
                    else:
                        lines += [
                            f"    inet {text} {broadcast}scope {scope} {name}",
                            "       valid_lft forever preferred_lft forever",
                        ]
            return "".join(f"{line}\n" for line in lines)
        device = _after(rest, "dev")
        if verb not in ("add", "replace", "del", "delete") or not rest or device is None:
            raise Refused(f'Command "{verb}" is unknown, try "ip address help".', 255)
        if device not in net["links"]:
            raise Refused(f'Cannot find device "{device}"', 1)
        addresses, text = net["links"][device], rest[0] if "/" in rest[0] else f"{rest[0]}/32"
        connected = {"dst": str(ipaddress.ip_interface(text).network), "dev": device}
        if verb in ("del", "delete"):
            if text not in addresses:
                raise Refused("RTNETLINK answers: Cannot assign requested address")
            addresses.remove(text)
            net["routes"] = [route for route in net["routes"] if route != connected]
        elif text not in addresses:
            addresses.append(text)
            net["routes"].append(connected)
        elif verb == "add":
            raise Refused("RTNETLINK answers: File exists")
        self._write(net)
        return ""

    def _link(self, words: list[str]) -> str:
        net = self.read()
        verb, rest = (words[0] if words else "show"), words[1:]
        name = _after(rest, "dev") or _after(rest, "name") or (rest[0] if rest else None)
        if verb in ("show", "list", "ls"):
            if name is not None and name not in net["links"]:
                raise Refused(f'Device "{name}" does not exist.', 1)
            return "".join(_link_line(i, one) + "\n" for i, one in enumerate(net["links"], 1) if name in (None, one))
        if name is None or verb not in ("add", "del", "delete", "set"):
            raise Refused(f'Command "{verb}" is unknown, try "ip link help".', 255)
        if verb == "add":
            if name in net["links"]:
                raise Refused("RTNETLINK answers: File exists")
            net["links"][name] = []
        elif name not in net["links"]:
            raise Refused(f'Cannot find device "{name}"', 1)
        elif verb in ("del", "delete"):
            if name in ("lo", DEVICE):
                raise Refused("RTNETLINK answers: Operation not supported")
            del net["links"][name]
            net["routes"] = [route for route in net["routes"] if route["dev"] != name]
        self._write(net)
        return ""

    def _write(self, net: dict[str, Any]) -> None:
        new = self._path.with_name(f".net.{os.getpid()}.{threading.get_ident()}")
        new.write_text(json.dumps(net, indent=1), encoding="utf-8")
        new.replace(self._path)


def _destination(text: str) -> str:
    if text == "default":
        return text
    try:
        net = ipaddress.ip_network(text)
    except ValueError as wrong:
        raise Refused(
            f'Error: inet prefix is expected rather than "{text}".'
            if "host bits" not in str(wrong)
            else "RTNETLINK answers: Invalid argument",
            1,
        ) from None
    return str(net.network_address) if net.prefixlen == 32 else str(net)


def _after(words: Sequence[str], keyword: str) -> str | None:
    for index, word in enumerate(words[:-1]):
        if word == keyword:
            return words[index + 1]
    return None


def _connected(net: dict[str, Any], address: str, device: str) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_interface(text).network for text in net["links"].get(device, []))


def _device_of(net: dict[str, Any], via: str | None) -> str:
    if via is not None:
        for name in net["links"]:
            if name != "lo" and _connected(net, via, name):
                return str(name)
        raise Refused("RTNETLINK answers: Network is unreachable")
    raise Refused("RTNETLINK answers: No such device")


def _lookup(net: dict[str, Any], address: str) -> dict[str, Any]:
    best: tuple[int, dict[str, Any]] | None = None
    for route in net["routes"]:
        prefix = ipaddress.ip_network("0.0.0.0/0" if route["dst"] == "default" else route["dst"])
        if ipaddress.ip_address(address) in prefix and (best is None or prefix.prefixlen > best[0]):
            best = (prefix.prefixlen, route)
    if best is None:
        raise Refused("RTNETLINK answers: Network is unreachable")
    return best[1]


def _route_line(route: dict[str, Any], net: dict[str, Any]) -> str:
    if "via" in route:
        tail = f" proto dhcp src {net['address']} metric 512" if route["dst"] == "default" else ""
        return f"{route['dst']} via {route['via']} dev {route['dev']}{tail}"
    own = [text.split("/")[0] for text in net["links"].get(route["dev"], [])]
    source = f" proto kernel scope link src {own[0]}" if own else " scope link"
    return f"{route['dst']} dev {route['dev']}{source}"


def _link_line(index: int, name: str) -> str:
    flags = "LOOPBACK,UP,LOWER_UP" if name == "lo" else "BROADCAST,MULTICAST,UP,LOWER_UP"
    return f"{index}: {name}: <{flags}> mtu {65536 if name == 'lo' else 9001} qdisc noqueue state UP mode DEFAULT group default"
