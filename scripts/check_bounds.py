"""Check what the distributions say of each other, and that they share a namespace cleanly.

Needs none of them installed: it exists to explain why an installation fails.
"""

from __future__ import annotations

import sys
import tomllib
from typing import TYPE_CHECKING

from packaging.version import Version

from workspace import NAMESPACES, ROOT, Member, module_files, read_members, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packaging.requirements import Requirement

Members = dict[str, Member]


def first_breaking_after(version: Version) -> Version:
    """Return the next version that is free to break what works with ``version``."""
    if version.major > 0:
        return Version(f"{version.major + 1}")
    return Version(f"0.{version.minor + 1}")


def bound_problems(requirement: Requirement, target: Member) -> Iterator[str]:
    """Yield what is wrong with one bound on another distribution of the repository."""
    limits = {bound.operator: Version(bound.version) for bound in requirement.specifier}
    if set(limits) != {">=", "<"} or len(requirement.specifier) != len(limits):
        yield f"write {requirement} as >=lowest,<limit"
        return
    ceiling = first_breaking_after(target.version)
    if limits[">="] > target.version:
        yield f"{requirement} asks for more than the {target.version} of this tree"
    if limits["<"] > ceiling:
        yield f"{requirement} admits {ceiling}, which may break it"
    if limits["<"] <= target.version:
        yield f"{requirement} shuts out the {target.version} of this tree"


def check_bounds(members: Members) -> Iterator[str]:
    """Yield the bounds between members that are malformed, too wide, too tight or too new."""
    for member in members.values():
        for requirement in member.published() + member.for_tests():
            target = members.get(requirement.name)
            if target is not None:
                for problem in bound_problems(requirement, target):
                    yield f"{member.name}: {problem}"


def check_namespace(members: Members) -> Iterator[str]:
    """Yield files that would break a namespace, packages with two owners, missing py.typed."""
    owners: dict[str, str] = {}
    for member in members.values():
        for shared in NAMESPACES:
            for path in sorted((member.source / shared).glob("*")):
                if path.is_file():
                    yield f"{member.name}: {shared}/{path.name}: {shared} is a namespace only"
        for marker in sorted(member.source.rglob("__init__.py")):
            package = marker.parent
            if (package.parent / "__init__.py").exists():
                continue
            path_in_source = package.relative_to(member.source).as_posix()
            other = owners.setdefault(path_in_source, member.name)
            if other != member.name:
                yield f"{member.name}: {path_in_source} belongs to {other}"
            if not (package / "py.typed").is_file():
                yield f"{member.name}: {path_in_source}/py.typed is missing"


def check_entry_points(members: Members) -> Iterator[str]:
    """Yield the entry points that name no module of their own distribution."""
    for member in members.values():
        for group, name, value in member.entry_points():
            module = value.partition(":")[0].strip()
            if not any((member.source / path).is_file() for path in module_files(module)):
                yield f"{member.name}: [{group}] {name} = {value}: no such module in its source"


def check_papers(members: Members) -> Iterator[str]:
    """Yield members without their own README and LICENSE, and those that differ in a floor."""
    licence = (ROOT / "LICENSE").read_bytes()
    floors = {member.project.get("requires-python") for member in members.values()}
    if len(floors) != 1:
        yield f"requires-python differs between the distributions: {sorted(map(str, floors))}"
    for member in members.values():
        for name in ("LICENSE", "README.md"):
            path = member.folder / name
            # A link is shipped as a link, and then not every installer takes the archive.
            if path.is_symlink() or not path.is_file():
                yield f"{member.name}: {name} must be a real file"
            elif name == "LICENSE" and path.read_bytes() != licence:
                yield f"{member.name}: LICENSE is not the root's"


def check_mypy_path(members: Members) -> Iterator[str]:
    """Yield sources that mypy does not know; it would name their modules wrongly and pass."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(table["tool"]["mypy"]["mypy_path"])
    for member in members.values():
        entry = f"$MYPY_CONFIG_FILE_DIR/packages/{member.folder.name}/src"
        if entry not in listed:
            yield f"pyproject.toml: mypy_path lacks {entry}"
    for entry in sorted(listed):
        folder = entry.replace("$MYPY_CONFIG_FILE_DIR", str(ROOT))
        if not (ROOT / folder).is_dir():
            yield f"pyproject.toml: mypy_path names no folder: {entry}"


CHECKS: tuple[Callable[[Members], Iterator[str]], ...] = (
    check_bounds,
    check_namespace,
    check_entry_points,
    check_papers,
    check_mypy_path,
)


def main() -> int:
    """Run the checks and report."""
    members = read_members()
    problems = [problem for check in CHECKS for problem in check(members)]
    if not members:
        problems.append("packages/ holds no distribution")
    return report(problems, f"bounds of {len(members)} distributions")


if __name__ == "__main__":
    sys.exit(main())
