"""Build every distribution as a user gets it, and check what is inside.

The wheel is built from the source archive, so that an archive that lacks a file shows.
"""

from __future__ import annotations

import configparser
import email
import email.message
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from workspace import NAMESPACES, module_files, read_members, report, uv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspace import Member


class ExactParser(configparser.ConfigParser):
    """Reads entry_points.txt, whose names keep their case."""

    def optionxform(self, optionstr: str) -> str:
        """Return the name as it is written."""
        return optionstr


def check_layout(names: set[str]) -> Iterator[str]:
    """Yield files that lie in a shared folder, and packages without their type marker."""
    packages: set[PurePosixPath] = set()
    for name in sorted(names):
        path = PurePosixPath(name)
        if str(path.parent) in {".", *NAMESPACES}:
            yield f"{name} lies in a folder that the distributions share"
        if path.name == "__init__.py" and str(path.parent.parent) in NAMESPACES:
            packages.add(path.parent)
    if len(packages) != 1:
        yield f"holds {len(packages)} packages of the namespace instead of one"
    for package in sorted(packages):
        if f"{package}/py.typed" not in names:
            yield f"{package}/py.typed is missing"


def check_source(member: Member, names: set[str]) -> Iterator[str]:
    """Yield the source files of a member that its wheel lacks, and what has no source."""
    source = {
        path.relative_to(member.source).as_posix()
        for path in member.source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in sorted(source - names):
        yield f"{name} is not shipped"
    for name in sorted(names - source):
        yield f"{name} is shipped without being in the source"


def check_entry_points(text: str, names: set[str]) -> Iterator[str]:
    """Yield the entry points that name no module of the wheel."""
    parser = ExactParser(delimiters=("=",), interpolation=None)
    parser.read_string(text)
    for group in parser.sections():
        for name, value in parser[group].items():
            if names.isdisjoint(module_files(value.partition(":")[0].strip())):
                yield f"[{group}] {name} = {value} names no module of this wheel"


def check_metadata(metadata: email.message.Message, files: list[str]) -> Iterator[str]:
    """Yield what a reader of the package index would miss."""
    if metadata["License-Expression"] != "Apache-2.0":
        yield f"License-Expression is {metadata['License-Expression']}"
    if not any(name.endswith("/licenses/LICENSE") for name in files):
        yield "the licence is not shipped"
    if not str(metadata.get_payload()).strip():
        yield "the README is not shipped"


def check_wheel(path: Path, member: Member, owners: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with one wheel; note whose each of its files is."""
    with zipfile.ZipFile(path) as archive:
        files = archive.namelist()
        names = {name for name in files if ".dist-info/" not in name}
        texts = {
            PurePosixPath(name).name: archive.read(name).decode("utf-8")
            for name in files
            if name.endswith((".dist-info/METADATA", ".dist-info/entry_points.txt"))
        }
    for name in sorted(names):
        other = owners.setdefault(name, path.name)
        if other != path.name:
            yield f"{name} is in {other} too"
    yield from check_layout(names)
    yield from check_source(member, names)
    yield from check_entry_points(texts.get("entry_points.txt", ""), names)
    yield from check_metadata(email.message_from_string(texts["METADATA"]), files)


def main() -> int:
    """Build, check and report."""
    members = read_members()
    owners: dict[str, str] = {}
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for member in members.values():
            target = Path(folder, member.name)
            uv("build", "-q", "-o", str(target), str(member.folder))
            (wheel,) = target.glob("*.whl")
            found = check_wheel(wheel, member, owners)
            problems += [f"{wheel.name}: {problem}" for problem in found]
    return report(problems, f"{len(members)} wheels with {len(owners)} files")


if __name__ == "__main__":
    sys.exit(main())
