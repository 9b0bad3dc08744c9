"""The front door: what it lists is there, and costs nothing that was not asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rulvar.core

HEAVY = ("pluggy", "importlib_metadata", "rfc8785", "tenacity", "asyncio", "rulvar.core.engine")

IMPORT_ALONE = f"""
import sys
import rulvar.core
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
rulvar.core.StoreURL.parse("sqlite:///x")
rulvar.core.assert_fenced_writes
assert "pluggy" not in sys.modules
rulvar.core.hookimpl
assert "pluggy" in sys.modules
assert "importlib_metadata" not in sys.modules
"""


@pytest.mark.slow
def test_an_import_brings_neither_plugins_nor_the_engine() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALONE], timeout=60, check=True)


def test_every_listed_name_is_there_and_can_be_seen() -> None:
    assert len(set(rulvar.core.__all__)) == len(rulvar.core.__all__)
    for name in rulvar.core.__all__:
        assert getattr(rulvar.core, name) is not None
        assert name in dir(rulvar.core)


def test_lazy_names_are_those_that_a_type_checker_sees() -> None:
    tree = ast.parse(Path(rulvar.core.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == rulvar.core._LAZY  # type: ignore[attr-defined] # hidden from type checkers
    assert set(seen) <= set(rulvar.core.__all__)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Enginee'"):
        rulvar.core.Enginee  # type: ignore[attr-defined] # noqa: B018
