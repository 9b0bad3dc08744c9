"""Test each distribution alone, with the oldest dependencies that its bounds admit.

The other distributions of the repository are installed from wheels: those of this tree
and, where a lower bound names an older release, that release's, built from its tag
NAME-vVERSION. The one under test is given as a folder, because uv lowers only the
dependencies of what it builds from a folder.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from workspace import ROOT, read_members, run, uv

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workspace import Member


def build_wheel(source: Path, wheels: Path) -> None:
    """Build a member's folder to a wheel."""
    uv("build", "-q", "--wheel", "-o", str(wheels), str(source))


def older_releases(members: dict[str, Member]) -> set[tuple[str, Version]]:
    """Return the releases older than the tree that a lower bound names."""
    found = set()
    for member in members.values():
        for requirement in member.published() + member.for_tests():
            target = members.get(requirement.name)
            if target is None:
                continue
            lows = [Version(b.version) for b in requirement.specifier if b.operator == ">="]
            # 0.1 and 0.1.0 are one version.
            found |= {(target.name, low) for low in lows if low != target.version}
    return found


def git(*arguments: str) -> bytes:
    """Return what git prints for the arguments."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def build_release(member: Member, version: Version, scratch: Path, wheels: Path) -> bool:
    """Build one older release from its tag; return False when there is no such tag."""
    spellings = {str(version), ".".join(map(str, (*version.release, 0, 0)[:3]))}
    tags = git("tag", "--list", *(f"{member.name}-v{text}" for text in spellings)).split()
    if not tags:
        return False
    tag = tags[0].decode()
    folder = member.folder.relative_to(ROOT).as_posix()
    source = scratch / tag
    with tarfile.open(fileobj=io.BytesIO(git("archive", tag, folder))) as archive:
        archive.extractall(source, filter="data")
    build_wheel(source / folder, wheels)
    return True


def test_alone(member: Member, python: str, scratch: Path, wheels: Path) -> None:
    """Install one member with its lowest dependencies and run its tests."""
    environment = scratch / f"environment-of-{member.name}"
    uv("venv", "-q", "--python", python, str(environment))
    interpreter = str(environment / ("Scripts" if os.name == "nt" else "bin") / "python")
    uv(
        *("pip", "install", "-q", "--python", interpreter),
        # uv keeps a wheel by its file name; a rebuilt one has the same name.
        *("--refresh", "--find-links", str(wheels)),
        *("--resolution", "lowest-direct"),
        *("--group", f"{member.folder / 'pyproject.toml'}:test"),
        str(member.folder),
    )
    uv("pip", "check", "--python", interpreter)
    uv("pip", "freeze", "-q", "--python", interpreter)
    modules = [
        ".".join(path.parent.relative_to(member.source).parts)
        for path in sorted(member.source.rglob("py.typed"))
    ]
    run(interpreter, "-I", "-c", "; ".join(f"import {module}" for module in modules))
    tests = member.folder / "tests"
    if any(tests.rglob("test_*.py")):
        configuration = str(ROOT / "pyproject.toml")
        options = ("-q", "-p", "no:cacheprovider", "-m", _tier(member), "-c", configuration)
        run(interpreter, "-m", "pytest", *options, str(tests))


def _tier(member: Member) -> str:
    """Return which tests ask something of the dependencies: what starts processes seldom does.

    The command line's do: they show what its libraries print, and which plugins are found.
    """
    return "not storm" if member.name == "rulvar-cli" else "not slow and not storm"


def check(names: Iterable[str], python: str) -> None:
    """Build what is needed, then test the named members; a failure raises."""
    members = read_members()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheels = scratch / "wheels"
        for member in members.values():
            build_wheel(member.folder, wheels)
        for name, version in sorted(older_releases(members)):
            if not build_release(members[name], version, scratch, wheels):
                print(f"{name} {version} has no tag here: taken from the index, or not at all")
        for name in names or members:
            test_alone(members[name], python, scratch, wheels)


def main() -> int:
    """Read the command line and run the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="distributions to test; all when none is named")
    parser.add_argument("--python", default=sys.executable, help="interpreter to test with")
    arguments = parser.parse_args()
    try:
        check(arguments.names, arguments.python)
    except subprocess.CalledProcessError as error:
        print(f"failed with status {error.returncode}: {' '.join(map(str, error.cmd))}")
        return 1
    print("every distribution works with the lowest dependencies it admits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
