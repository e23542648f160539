#!/usr/bin/env python3
"""Check what the documents say about the repository: every *.md that is tracked, or would be.

    .venv/bin/python tools/check_docs.py [FILE.md …]

Prints `file:line: problem` for each problem; exit code 1 if there is any. The rules:

1. a relative link leads to a file of the repository, and its #anchor to a heading (or an `id`) of that document
2. `make X` in code names a target of the Makefile
3. `python -m lab X --option` in code names a command of the lab and an option of it
4. fenced blocks name a language that is known here; bash, json, yaml and python parse
5. what looks like a path of the repository, in code, exists (`*` and `{a,b}` allowed; `<…>` and `$…` are left out)
6. no path of somebody's machine, no host of a package index, no TODO
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "layers/autojoin/autojoin"
LANGUAGES = frozenset({"", "bash", "json", "yaml", "python", "text", "mermaid", "toml"})
BARE_NAMES = (".py", ".md", ".yaml", ".toml")
FORBIDDEN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<![\w.>~}-])/(?:home|Users|work)/\w"), "a path of somebody's machine"),
    (re.compile(r"https?://\S*(?:pypi|pythonhosted|artifactory|devpi|/simple\b)", re.I), "a host of a package index"),
    (re.compile(r"\b(?:TODO|FIXME|TBD)\b"), "something left to do"),
)
_MAKE = re.compile(r"(?:^|[;&|`(]\s*|\s)make((?:\s+[A-Z_]+=\S+)*)\s+([a-z][\w-]*)")
_LAB = re.compile(r"python3?\s+-m\s+lab\s+(\S+)([^\n;|&]*)")
_PATH = re.compile(r"[\w.*{},/-]+")


@dataclass(frozen=True)
class Problem:
    """One finding."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Code:
    """Code in a document: inline (language None) or a fenced block. `line` is where its text begins."""

    text: str
    line: int
    language: str | None


class Document:
    """One markdown file, parsed."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def tokens(self) -> list[Token]:
        """Block tokens."""
        return MarkdownIt("commonmark").enable("table").parse(self.text)

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Anchors as GitHub makes them from headings, and explicit ids."""
        seen: dict[str, int] = {}
        found = set(re.findall(r'<\w+\s[^>]*\bid="([^"]+)"', self.text))
        for token, after in zip(self.tokens, self.tokens[1:], strict=False):
            if token.type == "heading_open":
                slug = slug_of("".join(c.content for c in after.children or [] if c.type in ("text", "code_inline")))
                found.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
                seen[slug] = seen.get(slug, 0) + 1
        return frozenset(found)

    def links(self) -> Iterator[tuple[str, int]]:
        """(target, line) of links and images."""
        for token, line in self._inline():
            target = token.attrGet("href") if token.type == "link_open" else token.attrGet("src") if token.type == "image" else None
            if target:
                yield str(target), line

    def code(self) -> Iterator[Code]:
        """Inline code and fenced blocks."""
        for token in self.tokens:
            if token.type == "fence" and token.map:
                yield Code(token.content, token.map[0] + 2, token.info.strip().partition(" ")[0])
        for token, line in self._inline():
            if token.type == "code_inline":
                yield Code(token.content, line, None)

    def _inline(self) -> Iterator[tuple[Token, int]]:
        for token in self.tokens:
            if token.type == "inline" and token.map:
                line = token.map[0] + 1
                for child in token.children or []:
                    yield child, line
                    line += child.type in ("softbreak", "hardbreak")


class Repository:
    """What the documents speak of."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> frozenset[str]:
        """Files that are tracked, or would be, relative to the root."""
        answer = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
        )
        return frozenset(f for f in answer.stdout.split("\0") if f and (self.root / f).is_file())

    @cached_property
    def tops(self) -> frozenset[str]:
        """First parts of paths, of the repository's and of our package's."""
        inside = [f.removeprefix(PACKAGE + "/") for f in self.files if f.startswith(PACKAGE + "/")]
        return frozenset(f.partition("/")[0] for f in [*self.files, *inside] if "/" in f)

    @cached_property
    def targets(self) -> frozenset[str]:
        """Targets of the Makefile."""
        makefile = self.root / "Makefile"
        text = makefile.read_text(encoding="utf-8") if makefile.exists() else ""
        return frozenset(re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE))

    @cached_property
    def commands(self) -> Mapping[str, frozenset[str]]:
        """Commands of the lab and their options. Raises whatever importing the lab raises."""
        import typer

        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        from lab.__main__ import app

        group: Any = typer.main.get_command(app)
        return {
            name: frozenset(o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")) | {"--help"}
            for name, command in group.commands.items()
        }

    def has(self, path: str, beside: Path) -> bool:
        """Whether a path with `*` and `{a,b}` matches something: from the root, beside the document, or in our package."""
        names = _braces(path.rstrip("/"))
        bases = (self.root, beside, self.root / PACKAGE)
        return all(any(any(True for _ in base.glob(name)) for base in bases) for name in names)


def slug_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def check(root: Path, names: Iterable[str] | None = None) -> list[Problem]:
    """All problems of these documents (paths relative to the root), or of every *.md."""
    repository = Repository(root)
    chosen = sorted(names) if names is not None else sorted(f for f in repository.files if f.endswith(".md"))
    found: list[Problem] = []
    for name in chosen:
        document = Document(root, root / name)
        for line, text in _problems(document, repository):
            found.append(Problem(document.name, line, text))
    return sorted(found, key=lambda p: (p.file, p.line, p.text))


def _problems(document: Document, repository: Repository) -> Iterator[tuple[int, str]]:
    for target, line in document.links():
        for text in _link(target, document, repository):
            yield line, text
    for code in document.code():
        if code.language is not None:
            yield from _block(code)
        for offset, words in enumerate(code.text.splitlines()):
            if code.language == "bash":
                words = re.sub(r"(?:^|\s)#.*", "", words)
            for text in (*_commands(words, code, repository), *_paths(words, code, document, repository)):
                yield code.line + offset, text
    for line, words in enumerate(document.text.splitlines(), 1):
        for pattern, what in FORBIDDEN:
            if pattern.search(words):
                yield line, f"{what}: {words.strip()[:80]}"


def _link(target: str, document: Document, repository: Repository) -> Iterator[str]:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return
    path, _, anchor = target.partition("#")
    if path.startswith("/"):
        yield f"link {target}: not relative"
        return
    found = (document.path.parent / path).resolve() if path else document.path
    if not found.exists() or not found.is_relative_to(repository.root):
        yield f"link {target}: no such file"
    elif anchor and found.suffix == ".md" and anchor not in Document(repository.root, found).anchors:
        yield f"link {target}: no such heading"


def _block(code: Code) -> Iterator[tuple[int, str]]:
    problem: str | None = None
    try:
        if code.language not in LANGUAGES:
            problem = f"a fenced block of language '{code.language}'; known are {', '.join(sorted(LANGUAGES - {''}))}"
        elif code.language == "bash":
            answer = subprocess.run(["bash", "-n"], input=code.text, capture_output=True, text=True, check=False)
            problem = answer.stderr.strip().replace("\n", "; ") if answer.returncode else None
        elif code.language == "json":
            json.loads(code.text)
        elif code.language == "yaml":
            list(yaml.load_all(code.text, Loader=_AnyTag))
        elif code.language == "python":
            ast.parse(code.text)
    except (ValueError, yaml.YAMLError, SyntaxError) as error:
        problem = f"{code.language} that does not parse: {' '.join(str(error).split())}"
    if problem:
        yield code.line, problem


def _commands(words: str, code: Code, repository: Repository) -> Iterator[str]:
    if code.language not in (None, "bash"):
        return
    if code.language == "bash" or words.startswith("make ") or " make " in words:
        for _, target in _MAKE.findall(words):
            if target not in repository.targets:
                yield f"make {target}: no such target"
    for command, rest in _LAB.findall(words):
        if command not in repository.commands:
            yield f"python -m lab {command}: no such command"
            continue
        for option in re.findall(r"(?<=\s)--?[a-z][\w-]*", rest):
            if option not in repository.commands[command]:
                yield f"python -m lab {command}: no option {option}"


def _paths(words: str, code: Code, document: Document, repository: Repository) -> Iterator[str]:
    if code.language not in (None, "bash", "text"):
        return
    for word in re.split(r"[\s=\"'();|&]+|file://", words):
        word = re.sub(r":\d+$", "", word.rstrip(".,:"))
        if not _PATH.fullmatch(word) or "..." in word:
            continue
        first, slash, _ = word.partition("/")
        is_bare_name = code.language is None and words == word and word.endswith(BARE_NAMES) and not word.startswith("*")
        if slash and first in repository.tops:
            if not repository.has(word, document.path.parent):
                yield f"path {word}: no such file or folder"
        elif not slash and is_bare_name and not any(f.rpartition("/")[2] == word for f in repository.files):
            yield f"file {word}: none of that name"


def _braces(path: str) -> list[str]:
    """`a/{b,c}` as `a/b` and `a/c`."""
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    return [p for part in found[1].split(",") for p in _braces(path[: found.start()] + part + path[found.end() :])]


class _AnyTag(yaml.SafeLoader):
    """YAML with CloudFormation's short forms."""


_AnyTag.add_multi_constructor("!", lambda loader, suffix, node: None)


def main(argv: list[str]) -> int:
    """Exit code 1 if there is a problem."""
    names = [Path(a).resolve().relative_to(ROOT).as_posix() for a in argv] or None
    problems = check(ROOT, names)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
