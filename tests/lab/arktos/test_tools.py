"""A machine without curl, jq and openssl gets Debian's, without root."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.provide_tools import Unavailable, provide

pytestmark = [pytest.mark.slow]


def test_fetched_tools_run(tmp_path: Path) -> None:
    provide(tmp_path / "tools", fetched=["curl", "jq", "openssl"])

    said = subprocess.run([tmp_path / "tools/bin/jq", "-cn", "{a: 1}"], capture_output=True, text=True, check=True)
    assert said.stdout == '{"a":1}\n'
    assert (tmp_path / "tools/root/usr/bin/curl").is_file()
    key = tmp_path / "key.pem"
    subprocess.run([tmp_path / "tools/bin/openssl", "genpkey", "-algorithm", "RSA", "-out", key], capture_output=True, check=True)
    assert key.read_text().startswith("-----BEGIN")


def test_a_machine_without_apt_get_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Unavailable, match="no apt-get"):
        provide(tmp_path / "tools")
