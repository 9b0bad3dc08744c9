"""What a build is called that nobody has named: the workflow's sources, or its code."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import workflow
from rulvar.core.engine.code.builds import build_of

if TYPE_CHECKING:
    from pathlib import Path

FLOWS = """
from rulvar.core import Context, workflow

@workflow
async def flow(ctx: Context) -> None:
    ...
"""
TELL = """
import sys
sys.path.insert(0, sys.argv[1])
from {module} import flow
from rulvar.core.engine.code.builds import build_of
print(build_of(flow.body))
"""


def package(folder: Path, helper: str = "A = 1\n") -> None:
    """Write a package whose workflow is deep in it."""
    inner = folder / "shop" / "flows"
    inner.mkdir(parents=True, exist_ok=True)
    (folder / "shop" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "shop" / "helper.py").write_text(helper, encoding="utf-8")
    (inner / "__init__.py").write_text("", encoding="utf-8")
    (inner / "order.py").write_text(FLOWS, encoding="utf-8")


def told(place: Path, module: str, *options: str) -> str:
    """Return what a fresh process calls the build."""
    done = subprocess.run(
        [sys.executable, *options, "-c", TELL.format(module=module), str(place)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_any_source_of_the_package_tells_builds_apart(tmp_path: Path) -> None:
    package(tmp_path / "a")
    package(tmp_path / "b")
    package(tmp_path / "c", helper="A = 2\n")
    (tmp_path / "b" / "shop" / "notes.txt").write_text("no source", encoding="utf-8")
    one, same, other = (told(tmp_path / name, "shop.flows.order") for name in "abc")
    assert one.startswith("sha256:")
    assert one == same
    assert other != one
    (tmp_path / "a" / "shop" / "more.py").write_text("", encoding="utf-8")
    assert told(tmp_path / "a", "shop.flows.order") != one


@pytest.mark.slow
def test_a_package_in_an_archive_has_the_same_build_as_in_its_folder(tmp_path: Path) -> None:
    package(tmp_path / "a")
    archive = tmp_path / "app.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in sorted((tmp_path / "a").rglob("*.py")):
            zipped.write(path, path.relative_to(tmp_path / "a"))
    assert told(archive, "shop.flows.order") == told(tmp_path / "a", "shop.flows.order")


@pytest.mark.slow
def test_a_module_by_itself_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOWS, encoding="utf-8")
    one = told(tmp_path, "flows")
    (tmp_path / "beside.py").write_text("", encoding="utf-8")
    assert told(tmp_path, "flows") == one
    (tmp_path / "flows.py").write_text(FLOWS + "\nB = 2\n", encoding="utf-8")
    assert told(tmp_path, "flows") != one


@pytest.mark.slow
def test_without_sources_the_compiled_code_counts_as_in_a_frozen_application(
    tmp_path: Path,
) -> None:
    import compileall  # noqa: PLC0415 - for this test alone

    builds = []
    for name, text in (("a", FLOWS), ("b", FLOWS), ("c", FLOWS.replace("...", "await ctx.now()"))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "flows.py").write_text(text, encoding="utf-8")
        compileall.compile_dir(folder, quiet=1, legacy=True)
        (folder / "flows.py").unlink()
        builds.append(told(folder, "flows"))
    assert builds[0] == builds[1] != builds[2]


def test_a_cell_of_a_notebook_counts_by_its_code() -> None:
    def cell(text: str) -> object:
        names: dict[str, object] = {"__name__": "__main__", "workflow": workflow}
        exec(compile(text, "<cell>", "exec"), names)
        return names["flow"]

    one = "async def flow(ctx):\n    return {1, 2, 3}\n"
    builds = [build_of(cell(text)) for text in (one, one, one.replace("3", "4"))]  # type: ignore[arg-type]
    assert builds[0] == builds[1] != builds[2]


@pytest.mark.parametrize("odd", [len, print, type("Callable", (), {"__call__": len})()])
def test_what_has_no_sources_and_no_code_has_a_build_all_the_same(odd: object) -> None:
    assert build_of(odd).startswith("sha256:")  # type: ignore[arg-type]


def test_sources_that_cannot_be_read_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import importlib  # noqa: PLC0415 - the package is made here

    module = importlib.import_module("shop.flows.order")

    def fails(_module: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("rulvar.core.engine.code.builds.files", fails)
    assert build_of(module.flow.body).startswith("sha256:")
    for name in [name for name in sys.modules if name.startswith("shop")]:
        del sys.modules[name]
