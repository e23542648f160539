"""tools/check_docs.py finds each kind of untruth, and leaves the truth alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.check_docs import check, slug_of

Write = Callable[[str], list[str]]


@pytest.fixture
def problems_of(tmp_path: Path) -> Write:
    """A repository with a Makefile, a tool and a second document; returns the problems of a README with the given text."""
    for name, text in {
        "Makefile": "demo: ## x\n\t@true\n",
        "tools/check": "",
        "docs/other.md": "# Other things\n\n## The `x` of it\n\n## Twice\n\n## Twice\n",
        "lab/__init__.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)

    def problems(text: str) -> list[str]:
        (tmp_path / "README.md").write_text(text, encoding="utf-8")
        return [str(p) for p in check(tmp_path)]

    return problems


TRUE = [
    "[a](docs/other.md) and [b](docs/other.md#the-x-of-it) and [c](docs/other.md#twice-1)",
    "# Here\n\n[d](#here) [e](https://example.com/x#y)",
    "`make demo` and `KEEP=1 make demo` but prose may make anything",
    "```bash\nmake demo # and make noise\necho \"$(date)\" | jq '.a // .b'\n```",
    '```json\n{"a": [1]}\n```\n\n```yaml\na: !Ref B\n```\n\n```python\nx = 1\n```',
    "`tools/check`, `docs/*.md`, `docs/{other}.md`, `tools/<name>`, `tools/`, `other.md`",
    "`/autojoin/demo/cluster` and `a/b` are no paths of ours",
    "`.venv/bin/python -m lab run FILE --report OUT.json`",
]

UNTRUE = [
    ("[a](docs/gone.md)", "README.md:1: link docs/gone.md: no such file"),
    ("text\n\n[a](docs/other.md#gone)", "README.md:3: link docs/other.md#gone: no such heading"),
    ("[a](#gone)", "README.md:1: link #gone: no such heading"),
    ("[a](../outside.md)", "README.md:1: link ../outside.md: no such file"),
    ("[a](/docs/other.md)", "README.md:1: link /docs/other.md: not relative"),
    ("`make tea`", "README.md:1: make tea: no such target"),
    ("one\n`make demo` two\n`make tea`", "README.md:3: make tea: no such target"),
    ("```bash\ntrue\nKEEP=1 make tea\n```", "README.md:3: make tea: no such target"),
    ("`python -m lab fly`", "README.md:1: python -m lab fly: no such command"),
    ("`python -m lab run FILE --fast`", "README.md:1: python -m lab run: no option --fast"),
    ("```bash\nif true\n```", "README.md:2: bash: line 2: syntax error: unexpected end of file"),
    ("```json\n{a: 1}\n```", "README.md:2: json that does not parse: Expecting property name"),
    ("```yaml\na: [\n```", "README.md:2: yaml that does not parse: "),
    ("```python\ndef\n```", "README.md:2: python that does not parse: "),
    ("```cobol\nSTOP RUN.\n```", "README.md:2: a fenced block of language 'cobol'"),
    ("`tools/gone`", "README.md:1: path tools/gone: no such file or folder"),
    ("`docs/*.txt`", "README.md:1: path docs/*.txt: no such file or folder"),
    ("```bash\ntools/gone --check\n```", "README.md:2: path tools/gone: no such file or folder"),
    ("`gone.py`", "README.md:1: file gone.py: none of that name"),
    ("see /home/somebody/x", "README.md:1: a path of somebody's machine"),
    ("from https://index.example.org/" + "simple", "README.md:1: a host of a package index"),
    ("TO" + "DO: write this", "README.md:1: something left to do"),
]


@pytest.mark.parametrize("text", TRUE)
def test_the_truth_passes(problems_of: Write, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_lab_commands(monkeypatch)

    assert problems_of(text) == []


@pytest.mark.parametrize(("text", "expected"), UNTRUE)
def test_an_untruth_is_found_with_its_line(problems_of: Write, text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_lab_commands(monkeypatch)

    (found,) = problems_of(text)

    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("heading", "slug"),
    [
        ("Dead-letter queues", "dead-letter-queues"),
        ("A join, end to end", "a-join-end-to-end"),
        ("States.Timeout", "statestimeout"),
        ("Every `*`", "every-"),
        ("node_uid is kept", "node_uid-is-kept"),
    ],
)
def test_anchors_are_made_as_github_makes_them(heading: str, slug: str) -> None:
    assert slug_of(heading.replace("`", "")) == slug


def with_lab_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of a lab, without bringing one in."""
    from tools import check_docs

    commands = {"run": frozenset({"--report", "--help"})}
    monkeypatch.setattr(check_docs.Repository, "commands", commands)
