"""`ip` on a node, as the scripts and flannel use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.fleet.network import Network


@pytest.fixture
def network(tmp_path: Path) -> Network:
    node = Network(tmp_path)
    node.set_up("127.20.0.10", "127.20.0.0/20", "02:0a:7f:14:00:0a")
    return node


def ip(network: Network, line: str) -> tuple[int, str, str]:
    return network.run(line.split())


def test_a_node_has_its_address_with_the_mask_of_its_subnet(network: Network) -> None:
    rc, out, _ = ip(network, "-4 -o addr show")

    assert rc == 0
    assert "2: ens5    inet 127.20.0.10/20 brd 127.20.15.255 scope global ens5" in out
    assert ip(network, "-4 route show")[1].splitlines() == [
        "default via 127.20.0.1 dev ens5 proto dhcp src 127.20.0.10 metric 512",
        "127.20.0.0/20 dev ens5 proto kernel scope link src 127.20.0.10",
    ]


def test_a_route_through_a_neighbour_is_added_replaced_and_deleted(network: Network) -> None:
    assert ip(network, "route add 127.20.129.0/24 via 127.20.0.11 dev ens5") == (0, "", "")
    assert ip(network, "route add 127.20.129.0/24 via 127.20.0.12 dev ens5") == (2, "", "RTNETLINK answers: File exists\n")
    assert ip(network, "-4 route replace 127.20.129.0/24 via 127.20.0.12")[0] == 0
    assert ip(network, "route show 127.20.129.0/24")[1] == "127.20.129.0/24 via 127.20.0.12 dev ens5\n"
    assert "via 127.20.0.12 dev ens5" in ip(network, "route get 127.20.129.7")[1]
    assert ip(network, "-4 route del 127.20.129.0/24") == (0, "", "")
    assert ip(network, "route del 127.20.129.0/24") == (2, "", "RTNETLINK answers: No such process\n")


def test_a_gateway_outside_the_subnet_is_unreachable(network: Network) -> None:
    answer = ip(network, "route replace 127.20.129.0/24 via 127.20.16.11 dev ens5")

    assert answer == (2, "", "RTNETLINK answers: Network is unreachable\n")


def test_the_bridge_comes_and_goes_with_its_routes(network: Network) -> None:
    assert ip(network, "link show cni0") == (1, "", 'Device "cni0" does not exist.\n')

    ip(network, "link add cni0 type bridge")
    ip(network, "addr add 127.20.128.1/24 dev cni0")
    there = ip(network, "route show")[1]
    ip(network, "link delete cni0")

    assert "127.20.128.0/24 dev cni0 proto kernel scope link src 127.20.128.1" in there
    assert "cni0" not in ip(network, "route show")[1]
    assert ip(network, "link delete cni0")[0] == 1


def test_what_the_lab_does_not_know_is_refused(network: Network) -> None:
    assert ip(network, "-6 route show")[0] == 255
    assert ip(network, "rule show")[0] == 1
