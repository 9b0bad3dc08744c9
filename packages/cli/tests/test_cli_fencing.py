"""`rulvar fencing check` as a deployment's gate: each status, and why."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest
from click.testing import CliRunner

from rulvar.cli.main import main
from rulvar.core.errors import StoreBusyError
from rulvar.core.plugins import open_stores
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore, reference_stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from rulvar.core.records import JournalRecord, Lease


def check(*args: str, status: int) -> Result:
    result = CliRunner().invoke(main, ("fencing", "check", *args))
    assert result.exit_code == status, result.output
    return result


def document(*args: str, status: int) -> dict[str, object]:
    return cast("dict[str, object]", json.loads(check(*args, "--json", status=status).stdout))


@pytest.fixture
def sqlite(tmp_path: Path) -> tuple[str, str]:
    url = f"sqlite:///{tmp_path}/runs.db"
    open_stores(url).close()
    return ("--store", url)


def replace_stores(monkeypatch: pytest.MonkeyPatch, stores: Stores) -> None:
    @contextmanager
    def opened(_: str | None, **_options: bool) -> Iterator[Stores]:
        yield stores

    monkeypatch.setattr("rulvar.cli.commands.fencing.opened_stores", opened)
    monkeypatch.setenv("RULVAR_STORE", "memory://")


class LeakyStore(ReferenceStore):
    """Promises the fence and lets every append in."""

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        del lease
        super().append(run_id, record)


@pytest.mark.slow
def test_a_fenced_pair_is_status_0(sqlite: tuple[str, str]) -> None:
    assert "fenced, as declared" in check(*sqlite, status=0).stdout
    assert document(*sqlite, status=0)["probe"] is None
    text = check(*sqlite, "--probe", status=0).stdout
    assert "every mutation under a dead lease was refused" in text
    probe = cast("dict[str, object]", document(*sqlite, "--probe", status=0)["probe"])
    mutations = cast("dict[str, str]", probe["mutations"])
    assert {"append", "put_meta", "put_blob", "delete_blob", "renew", "release", "delete"} <= set(
        mutations
    )
    assert set(mutations.values()) == {"refused"}


def test_the_probe_leaves_no_run_behind(sqlite: tuple[str, str]) -> None:
    check(*sqlite, "--probe", status=0)
    result = CliRunner().invoke(main, ("runs", "ls", *sqlite))
    assert result.stdout == "no runs\n"


@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
def test_a_pair_that_promises_nothing_is_status_1() -> None:
    store = ("--store", "memory://")
    text = check(*store, "--probe", status=1).stdout
    assert text.count("does NOT declare fenced_writes") == 2
    assert "NOT FENCED: the journal store" in text
    found = document(*store, status=1)
    assert found["declared"] == {"journal": False, "transcripts": False}
    assert found["fenced"] is False


def test_twins_of_different_stores_are_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = Stores(reference_stores().journal, reference_stores().transcripts)
    replace_stores(monkeypatch, mixed)
    assert "two: the stores commit in different databases" in check(status=1).stdout


def test_a_broken_promise_is_found_by_the_probe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = LeakyStore()
    replace_stores(monkeypatch, Stores(store, store.transcripts()))
    check(status=0)
    text = check("--probe", status=1).stdout
    assert "append under a superseded lease: landed, not refused" in text
    assert "NOT FENCED: declared, but the probe failed" in text
    probe = cast("dict[str, object]", document("--probe", status=1)["probe"])
    assert cast("dict[str, str]", probe["mutations"])["append"] == "landed"


def test_nothing_to_check_is_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no store given" in check(status=2).stderr
    check("--store", "sqlite:///runs.db?nope=1", status=2)
    assert list(tmp_path.iterdir()) == []


def test_a_gate_passes_before_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check("--store", "sqlite:///runs.db", status=0)
    assert (tmp_path / "runs.db").is_file()


def test_busy_is_never_not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(_: object) -> None:
        message = "somebody writes"
        raise StoreBusyError(message)

    stores = reference_stores()
    replace_stores(monkeypatch, Stores(stores.journal, stores.transcripts))
    monkeypatch.setattr("rulvar.cli.commands.fencing.probe_fencing", busy)
    found = document("--probe", status=5)
    assert cast("dict[str, object]", found["error"])["code"] == "store-busy"
