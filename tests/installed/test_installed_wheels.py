"""The distributions as users get them: wheels in clean environments, and a stranger's store."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "quickstart"

pytestmark = [pytest.mark.timeout(300), pytest.mark.storm]


def call(*command: str | Path, cwd: Path) -> str:
    """Run a command; return what it prints, or fail with all it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    if done.returncode != 0:
        shown = " ".join(map(str, command[:3]))
        pytest.fail(f"{shown} ...: {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def uv(*arguments: str | Path, cwd: Path) -> str:
    return call(sys.executable, "-m", "uv", *arguments, cwd=cwd)


@dataclass(frozen=True)
class Environment:
    """A clean virtual environment and an empty folder to work in."""

    folder: Path

    @property
    def scripts(self) -> Path:
        return self.folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")

    def python(self, code: str, *arguments: str) -> Any:
        """Execute code that prints one JSON value, away from this repository; return it."""
        python = self.scripts / "python"
        return json.loads(call(python, "-I", "-c", code, *arguments, cwd=self.folder))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by name; the stranger's is built from a copy far from the repository."""
    target = tmp_path_factory.mktemp("wheels")
    outside = tmp_path_factory.mktemp("outside") / "acme-store"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples" / "acme-store", outside, ignore=ignored)
    sources = {
        "core": ROOT / "packages" / "core",
        "store-sqlite": ROOT / "packages" / "store-sqlite",
        "cli": ROOT / "packages" / "cli",
        "acme-store": outside,
    }
    found = {}
    for name, source in sources.items():
        uv("build", "-q", "--wheel", "-o", target / name, source, cwd=target)
        (found[name],) = (target / name).glob("*.whl")
    return found


@pytest.fixture(scope="module")
def make_environment(
    wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> MakeEnvironment:
    return MakeEnvironment(wheels, tmp_path_factory)


@dataclass(frozen=True)
class MakeEnvironment:
    """Makes clean environments with only the named wheels and what they ask for."""

    wheels: dict[str, Path]
    folders: pytest.TempPathFactory

    def __call__(self, *names: str) -> Environment:
        environment = Environment(self.folders.mktemp("environment"))
        folder = environment.folder
        uv("venv", "-q", "--no-config", "--python", sys.executable, folder / "venv", cwd=folder)
        python = environment.scripts / "python"
        chosen = [self.wheels[name] for name in names]
        uv("pip", "install", "-q", "--no-config", "--python", python, *chosen, cwd=folder)
        return environment


@pytest.fixture(scope="module")
def two_wheels(make_environment: MakeEnvironment) -> Environment:
    return make_environment("core", "store-sqlite")


@pytest.fixture(scope="module")
def with_a_stranger(make_environment: MakeEnvironment) -> Environment:
    return make_environment("core", "store-sqlite", "cli", "acme-store")


LIST = """
import json
from rulvar.core.plugins import installed_stores
print(json.dumps([[s.scheme, s.distribution, s.problem] for s in installed_stores()]))
"""

ASSERT_FENCING = """
import json, sys
from rulvar.core import assert_fenced_writes, has_fenced_writes, open_stores, probe_fencing

with open_stores(sys.argv[1]) as stores:
    fenced = assert_fenced_writes(stores)
    probe_fencing(fenced)
    marks = [has_fenced_writes(stores.journal), has_fenced_writes(stores.transcripts)]
print(json.dumps(marks))
"""

REFUSED = """
import json, sys
from rulvar.core import open_stores
from rulvar.core.errors import PluginError

try:
    open_stores(sys.argv[1])
except PluginError as error:
    print(json.dumps(str(error)))
"""

TAKEOVER = """
import json, sys
from rulvar.core import LeaseHeldError, open_stores
from rulvar.core.spi import JournalRecord

with open_stores(sys.argv[1]) as stores:
    stalled = stores.journal.acquire("run-1", "stalled")
    stores.journal.append("run-1", JournalRecord(seq=0, payload=b'{"seq":0}'), lease=stalled)
    stores.journal.release(stalled)
    successor = stores.journal.acquire("run-1", "successor")
    reasons = []
    late = JournalRecord(seq=1, payload=b'{"seq":1}')
    for write in (
        lambda: stores.journal.append("run-1", late, lease=stalled),
        lambda: stores.transcripts.put("run-1/late", b"late", lease=stalled),
        lambda: stores.journal.delete("run-1", lease=stalled),
    ):
        try:
            write()
        except LeaseHeldError as error:
            reasons.append(error.reason)
    kept = [record.payload.decode() for record in stores.journal.load("run-1")]
    refs = list(stores.transcripts.list_refs("run-1"))
print(json.dumps([successor.epoch > stalled.epoch, reasons, kept, refs]))
"""

QUICKSTART = """
import asyncio, json, os, sys
url, examples, directory, dies_at = sys.argv[1:]
sys.path.insert(0, examples)
import workflow
from rulvar.core import Engine, LeaseHeldError, assert_fenced_writes, open_stores

wanted = {"directory": directory, "pattern": "*.txt", "limit": 10}
workflow.half_read = lambda name: os._exit(0) if name == dies_at else None

async def main():
    with open_stores(url) as stores:
        assert_fenced_writes(stores)
        async with Engine(stores, [workflow.count_files]) as engine:
            while True:
                try:
                    outcome = await engine.run("count-files", wanted, run_id="outside")
                    break
                except LeaseHeldError as error:
                    # The dead process's lease: it ends by itself.
                    assert error.reason == "held", error
                    await asyncio.sleep(0.05)
    plainly = workflow.count_plainly(wanted)
    print(json.dumps([outcome.status, outcome.value == plainly, outcome.value["files"],
                      outcome.epoch, outcome.executed]))

if dies_at:
    print("null", flush=True)
asyncio.run(main())
"""


def test_two_wheels_see_only_their_own_stores(two_wheels: Environment) -> None:
    assert two_wheels.python(LIST) == [
        ["memory", "rulvar-core", None],
        ["sqlite", "rulvar-store-sqlite", None],
    ]


def test_the_core_alone_brings_no_driver(two_wheels: Environment) -> None:
    code = """
import json, sys
import rulvar.core
wanted = {"apsw", "click", "importlib_metadata", "pluggy", "rulvar.stores", "tenacity"}
print(json.dumps(sorted(wanted & set(sys.modules))))
"""
    assert two_wheels.python(code) == []


@pytest.mark.parametrize("url", ["sqlite:///runs.db", "sqlite://"])
def test_two_wheels_assert_and_prove_the_fence(two_wheels: Environment, url: str) -> None:
    assert two_wheels.python(ASSERT_FENCING, url) == [True, True]


def test_two_wheels_refuse_a_stalled_holder(two_wheels: Environment) -> None:
    outcome = two_wheels.python(TAKEOVER, "sqlite:///takeover.db")
    assert outcome == [True, ["superseded"] * 3, ['{"seq":0}'], []]


def test_a_known_scheme_that_is_missing_names_its_distribution(
    two_wheels: Environment, make_environment: MakeEnvironment
) -> None:
    message = two_wheels.python(REFUSED, "file:///runs")
    assert "pip install rulvar-store-file" in message
    core_only = make_environment("core")
    message = core_only.python(REFUSED, "sqlite:///runs.db")
    assert "pip install rulvar-store-sqlite" in message
    assert core_only.python(LIST) == [["memory", "rulvar-core", None]]


def test_a_strange_scheme_that_is_missing_names_those_that_are_there(
    two_wheels: Environment,
) -> None:
    message = two_wheels.python(REFUSED, "acme:///runs")
    assert "acme" in message
    assert "memory, sqlite" in message


def test_a_store_from_outside_is_found_opened_and_fenced(with_a_stranger: Environment) -> None:
    assert ["acme", "acme-store", None] in with_a_stranger.python(LIST)
    assert with_a_stranger.python(ASSERT_FENCING, "acme:///acme.db") == [True, True]
    outcome = with_a_stranger.python(TAKEOVER, "acme:///takeover.db")
    assert outcome == [True, ["superseded"] * 3, ['{"seq":0}'], []]


def test_the_command_lists_a_store_from_outside(with_a_stranger: Environment) -> None:
    rulvar = with_a_stranger.scripts / "rulvar"
    listed = call(rulvar, "stores", "--json", cwd=with_a_stranger.folder)
    assert "acme-store" in listed
    json.loads(listed)
    call(
        rulvar, "fencing", "check", "--probe", "--store", "acme:///x.db", cwd=with_a_stranger.folder
    )


def test_a_store_from_outside_runs_the_quickstarts_workflow(
    with_a_stranger: Environment, tmp_path: Path
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("line\n" * number, "utf-8")
    url = "acme:///quickstart.db?lease_ttl_ms=1000"

    def process(*, dies_at: str = "") -> Any:
        return with_a_stranger.python(QUICKSTART, url, str(EXAMPLES), str(tmp_path), dies_at)

    # Killed in the middle of the third of five files: the list and two files were done.
    process(dies_at="2.txt")
    assert process() == ["ok", True, 5, 2, 4]
    status, equal, files, _, executed = process()
    assert (status, equal, files, executed) == ("ok", True, 5, 0)
