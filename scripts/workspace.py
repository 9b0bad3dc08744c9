"""What the check scripts know of this repository: its root and its distributions."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]

NAMESPACES = ("rulvar", "rulvar/stores")
"""Folders that several distributions share: no file of their own, ever."""


@dataclass(frozen=True)
class Member:
    """One distribution of the repository, as its pyproject.toml describes it."""

    folder: Path
    table: dict[str, Any]

    @property
    def project(self) -> dict[str, Any]:
        """The ``[project]`` table."""
        project: dict[str, Any] = self.table["project"]
        return project

    @property
    def name(self) -> str:
        """The distribution's normalised name."""
        return str(canonicalize_name(self.project["name"]))

    @property
    def version(self) -> Version:
        """The version that this tree holds."""
        return Version(self.project["version"])

    @property
    def source(self) -> Path:
        """The folder that holds the import packages."""
        return self.folder / "src"

    def published(self) -> list[Requirement]:
        """Return what a user of the distribution may come to need, extras included."""
        texts = list(self.project.get("dependencies", []))
        for extra in self.project.get("optional-dependencies", {}).values():
            texts += extra
        return [Requirement(text) for text in texts]

    def for_tests(self) -> list[Requirement]:
        """Return what its own tests need besides."""
        groups = self.table.get("dependency-groups", {}).values()
        return [Requirement(text) for group in groups for text in group]

    def entry_points(self) -> list[tuple[str, str, str]]:
        """Return (group, name, value) of each entry point, scripts among them."""
        groups = dict(self.project.get("entry-points", {}))
        groups["console_scripts"] = self.project.get("scripts", {})
        return [(g, name, value) for g, names in groups.items() for name, value in names.items()]


def read_members() -> dict[str, Member]:
    """Return the distributions of the repository by their normalised names."""
    files = sorted(ROOT.glob("packages/*/pyproject.toml"))
    members = [Member(f.parent, tomllib.loads(f.read_text(encoding="utf-8"))) for f in files]
    return {member.name: member for member in members}


def module_files(module: str) -> tuple[str, str]:
    """Return the two paths that a module of this dotted name may have."""
    stem = module.replace(".", "/")
    return f"{stem}.py", f"{stem}/__init__.py"


def run(*command: str) -> None:
    """Show a command and run it in the root; a failure is a CalledProcessError."""
    print("+", *command, flush=True)
    # An active environment would be the one that uv installs to, whatever it is told.
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def uv(*arguments: str) -> None:
    """Run the uv of this interpreter's own environment, whatever is on PATH."""
    run(sys.executable, "-m", "uv", *arguments)


def report(problems: list[str], looked_at: str) -> int:
    """Print the problems and one line of summary; return the exit status."""
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{looked_at}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0
