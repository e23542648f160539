"""Names on a node without a resolver: curl's configuration and the stand-ins' resolver say the same."""

from __future__ import annotations

import json
from pathlib import Path

from lab.fleet.names import Resolver, render


def node(root: Path, names: dict[str, list[str]]) -> Path:
    (root / "run/lab/curl.d").mkdir(parents=True)
    (root / "run/lab/address").write_text("127.20.0.10", encoding="utf-8")
    (root / "run/lab/hosts.json").write_text(json.dumps({"names": names}), encoding="utf-8")
    return root


def test_curl_is_told_every_address_of_a_name_and_the_nodes_own(tmp_path: Path) -> None:
    root = node(tmp_path, {"api.rp1.demo": ["127.20.0.11", "127.20.0.12"]})

    render(root)

    lines = (root / "root/.curlrc").read_text(encoding="utf-8").splitlines()
    assert 'resolve = "api.rp1.demo:8080:127.20.0.11,127.20.0.12"' in lines
    assert lines[-1] == 'interface = "127.20.0.10"'


def test_fragments_come_first(tmp_path: Path) -> None:
    root = node(tmp_path, {})
    (root / "run/lab/curl.d/20-b.conf").write_text('connect-to = "b"\n', encoding="utf-8")
    (root / "run/lab/curl.d/10-a.conf").write_text('connect-to = "a"\n', encoding="utf-8")

    render(root)

    assert (root / "root/.curlrc").read_text(encoding="utf-8").splitlines()[:2] == ['connect-to = "a"', 'connect-to = "b"']


def test_the_resolver_follows_the_file(tmp_path: Path) -> None:
    root = node(tmp_path, {"api": ["127.20.0.11"]})
    resolver = Resolver(root)
    before = resolver.resolve("API.")

    (root / "run/lab/hosts.json.new").write_text(json.dumps({"names": {"api": ["127.20.0.12"]}}), encoding="utf-8")
    (root / "run/lab/hosts.json.new").replace(root / "run/lab/hosts.json")

    assert (before, resolver.resolve("api"), resolver.resolve("nobody"), resolver.resolve("127.0.0.9")) == (
        ["127.20.0.11"], ["127.20.0.12"], [], ["127.0.0.9"],
    )  # fmt: skip
