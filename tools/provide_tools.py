"""Provide the tools that the shipped scripts find on a golden image, where this machine lacks them: without root.

Usage: tools/provide_tools.py FOLDER [TOOL …]. FOLDER/bin then holds each tool: a link to the machine's own, or a wrapper of
the one in Debian's packages, fetched with apt-get's own options for another root folder. TOOLs that are named are fetched
even if the machine has them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TOOLS = ("curl", "jq", "openssl")
PACKAGE = re.compile(r"^'[^']*' (?P<name>[^_ ]+)_\S+\.deb ", re.MULTILINE)
WRAPPER = """#!/bin/sh
LD_LIBRARY_PATH={libraries} exec {binary} "$@"
"""


class Unavailable(Exception):
    """A tool is neither on this machine nor can it be fetched."""


def provide(folder: Path, fetched: Sequence[str] = ()) -> None:
    """Fill folder/bin. `fetched` tools are taken from Debian's packages in any case. Raises Unavailable."""
    binaries = folder / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    binaries.mkdir(parents=True)
    own = {tool: shutil.which(tool) for tool in TOOLS if tool not in fetched}
    for tool, path in own.items():
        if path:
            (binaries / tool).symlink_to(path)
    missing = [tool for tool in TOOLS if not own.get(tool)]
    if missing:
        _unpack(folder, missing)
        for tool in missing:
            _wrap(folder, tool)


def _unpack(folder: Path, packages: Sequence[str]) -> None:
    if not shutil.which("apt-get"):
        raise Unavailable(f"this machine has no {' and no '.join(packages)}, and no apt-get to fetch them: install them")
    for part in ("state/lists/partial", "cache/archives/partial", "debs", "root"):
        (folder / part).mkdir(parents=True)
    options = [
        *("-o", f"Dir::State={folder}/state", "-o", f"Dir::Cache={folder}/cache", "-o", "Debug::NoLocking=1"),
        *("-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "-qq"),
    ]
    _run(["apt-get", *options, "update"], folder)
    plan = _run(["apt-get", *options, "install", "--print-uris", "--yes", "--reinstall", "--no-install-recommends", *packages], folder)
    wanted = sorted({match["name"] for match in PACKAGE.finditer(plan)} | set(packages))
    _run(["apt-get", *options, "download", *wanted], folder / "debs")
    for package in (folder / "debs").glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(folder / "root")], folder)


def _wrap(folder: Path, tool: str) -> None:
    binary = folder / "root/usr/bin" / tool
    libraries = ":".join(str(path) for path in sorted((folder / "root").glob("**/*-linux-gnu*")) if path.is_dir())
    wrapper = folder / "bin" / tool
    wrapper.write_text(WRAPPER.format(libraries=libraries, binary=binary), encoding="utf-8")
    wrapper.chmod(0o755)
    _run([str(wrapper), "version" if tool == "openssl" else "--version"], folder)


def _run(argv: Sequence[str], folder: Path) -> str:
    done = subprocess.run(list(argv), cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(argv[:1])} … {argv[-1]}: {done.stderr.strip()[-500:]}; install {' and '.join(TOOLS)} by hand")
    return done.stdout


if __name__ == "__main__":
    try:
        provide(Path(sys.argv[1]).resolve(), sys.argv[2:])
    except Unavailable as error:
        sys.exit(f"autojoin: {error}")
