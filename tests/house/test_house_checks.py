"""The checks of the house see what they are there for: a sound small house, broken once each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

ROOT_TABLE = """
[tool.mypy]
mypy_path = ["$MYPY_CONFIG_FILE_DIR/packages/base/src", "$MYPY_CONFIG_FILE_DIR/packages/shop/src"]
"""

MEMBER = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "rulvar-{name}"
version = "0.4.2"
readme = "README.md"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = [{dependency}]

[project.entry-points."rulvar.stores"]
{name} = "rulvar.stores.{name}.plugin"

[tool.hatch.build.targets.wheel]
packages = ["src/rulvar"]
"""


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def run(house: Path, script: str) -> tuple[int, str]:
    command = [sys.executable, str(house / "scripts" / script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def house(tmp_path: Path) -> Path:
    root = tmp_path / "house"
    shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text(ROOT_TABLE, "utf-8")
    (root / "LICENSE").write_text("free\n", "utf-8")
    for name, dependency in (("base", ""), ("shop", '"rulvar-base>=0.4,<0.5"')):
        member = root / "packages" / name
        package = member / "src" / "rulvar" / "stores" / name
        package.mkdir(parents=True)
        for file in ("__init__.py", "plugin.py", "py.typed"):
            (package / file).touch()
        (member / "LICENSE").write_text("free\n", "utf-8")
        (member / "README.md").write_text("What it is.\n", "utf-8")
        table = MEMBER.format(name=name, dependency=dependency)
        (member / "pyproject.toml").write_text(table, "utf-8")
    return root


def bound(text: str) -> Callable[[Path], None]:
    def change(house: Path) -> None:
        table = house / "packages" / "shop" / "pyproject.toml"
        rewrite(table, "rulvar-base>=0.4,<0.5", text)

    return change


def stray_file(path: str) -> Callable[[Path], None]:
    return lambda house: (house / "packages" / "shop" / "src" / "rulvar" / path).touch()


def no_module(house: Path) -> None:
    (house / "packages/shop/src/rulvar/stores/shop/plugin.py").unlink()


def no_types(house: Path) -> None:
    (house / "packages/shop/src/rulvar/stores/shop/py.typed").unlink()


def linked_licence(house: Path) -> None:
    (house / "packages/shop/LICENSE").unlink()
    (house / "packages/shop/LICENSE").symlink_to(house / "LICENSE")


def other_licence(house: Path) -> None:
    (house / "packages/shop/LICENSE").write_text("dear\n", "utf-8")


def other_floor(house: Path) -> None:
    rewrite(house / "packages/shop/pyproject.toml", ">=3.11", ">=3.12")


def unknown_to_mypy(house: Path) -> None:
    rewrite(house / "pyproject.toml", "packages/shop/src", "packages/sold/src")


def same_package_twice(house: Path) -> None:
    package = house / "packages/shop/src/rulvar/stores/base"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "py.typed").touch()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (bound("rulvar-base"), "write rulvar-base as >=lowest,<limit"),
        (bound("rulvar-base>=0.4"), "as >=lowest,<limit"),
        (bound("rulvar-base>=0.4,<0.6"), "admits 0.5, which may break it"),
        (bound("rulvar-base>=0.4,<0.4.2"), "shuts out the 0.4.2 of this tree"),
        (bound("rulvar-base>=0.4.3,<0.5"), "asks for more than the 0.4.2 of this tree"),
        (stray_file("__init__.py"), "rulvar/__init__.py: rulvar is a namespace only"),
        (stray_file("stores/__init__.py"), "rulvar/stores is a namespace only"),
        (stray_file("py.typed"), "rulvar/py.typed: rulvar is a namespace only"),
        (no_module, "shop = rulvar.stores.shop.plugin: no such module"),
        (no_types, "rulvar/stores/shop/py.typed is missing"),
        (linked_licence, "LICENSE must be a real file"),
        (other_licence, "LICENSE is not the root's"),
        (other_floor, "requires-python differs"),
        (unknown_to_mypy, "mypy_path lacks $MYPY_CONFIG_FILE_DIR/packages/shop/src"),
        (unknown_to_mypy, "mypy_path names no folder"),
        (same_package_twice, "rulvar/stores/base belongs to rulvar-base"),
    ],
)
def test_bounds_and_namespace_are_checked(
    house: Path, damage: Callable[[Path], None], told: str
) -> None:
    assert run(house, "check_bounds.py") == (0, "bounds of 2 distributions: no problems\n")
    damage(house)
    status, output = run(house, "check_bounds.py")
    assert status == 1
    assert told in output


LONG_FUNCTION = "def long() -> None:\n" + "    long()\n" * 70


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("plugin.py", "a = 1\n" * 501, "501 lines, budget 500"),
        ("plugin.py", LONG_FUNCTION, "long: 71 lines, budget 70"),
        ("plugin.py", "async " + LONG_FUNCTION, "long: 71 lines, budget 70"),
        ("plugin.py", f'PLACE = "{Path("/home") / "someone"}"\n', "names a path of one machine"),
    ],
)
def test_budgets_are_checked(house: Path, name: str, text: str, told: str) -> None:
    assert run(house, "check_budgets.py")[0] == 0
    path = house / "packages" / "shop" / "src" / "rulvar" / "stores" / "shop" / name
    path.write_text(text, "utf-8")
    status, output = run(house, "check_budgets.py")
    assert status == 1
    assert told in output


def test_a_test_file_has_the_same_budget_and_its_functions_none(house: Path) -> None:
    path = house / "packages" / "shop" / "tests" / "test_shop.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LONG_FUNCTION, "utf-8")
    assert run(house, "check_budgets.py")[0] == 0
    path.write_text("a = 1\n" * 501, "utf-8")
    assert "501 lines, budget 500" in run(house, "check_budgets.py")[1]


def test_the_contract_has_a_budget_of_its_own(house: Path) -> None:
    path = house / "packages" / "core" / "src" / "rulvar" / "core" / "protocols.py"
    path.parent.mkdir(parents=True)
    path.write_text("a = 1\n" * 300, "utf-8")
    assert run(house, "check_budgets.py")[0] == 0
    path.write_text("a = 1\n" * 301, "utf-8")
    assert "301 lines, budget 300" in run(house, "check_budgets.py")[1]


@pytest.mark.storm
def test_wheels_are_checked(house: Path) -> None:
    status, output = run(house, "check_wheels.py")
    assert (status, output.splitlines()[-1]) == (0, "2 wheels with 6 files: no problems")
    stray_file("__init__.py")(house)
    no_types(house)
    rewrite(
        house / "packages" / "base" / "pyproject.toml",
        'packages = ["src/rulvar"]',
        'packages = ["src/rulvar"]\nexclude = ["plugin.py"]',
    )
    status, output = run(house, "check_wheels.py")
    assert status == 1
    assert "rulvar/__init__.py lies in a folder that the distributions share" in output
    assert "rulvar/stores/shop/py.typed is missing" in output
    assert "rulvar/stores/base/plugin.py is not shipped" in output
    assert "base = rulvar.stores.base.plugin names no module of this wheel" in output
