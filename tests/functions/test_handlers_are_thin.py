"""A handler is a whole file: no rule, no client, no environment."""

from __future__ import annotations

import ast

import pytest

from tests.fakes.world import ROOT
from tests.functions.conftest import FUNCTIONS

FORBIDDEN = (ast.If, ast.IfExp, ast.Try, ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Subscript)


def source(function: str) -> str:
    return (ROOT / "functions" / function / "app.py").read_text()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_is_short_and_decides_nothing(function: str) -> None:
    tree = ast.parse(source(function))

    assert len(source(function).splitlines()) <= 25
    assert [type(n).__name__ for n in ast.walk(tree) if isinstance(n, FORBIDDEN)] == []


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_imports_only_our_package(function: str) -> None:
    tree = ast.parse(source(function))

    plain = [n for n in ast.walk(tree) if isinstance(n, ast.Import)]
    roots = {(n.module or "").partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}

    assert plain == []
    assert roots == {"autojoin"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_functions_folder_holds_its_handler_and_nothing_else(function: str) -> None:
    found = {p.name for p in (ROOT / "functions" / function).iterdir() if p.name != "__pycache__"}

    assert found == {"app.py"}


def test_there_are_at_most_fourteen_trust_boundaries() -> None:
    assert len(FUNCTIONS) <= 14
