"""What a store raises or answers out of turn fails its clause; the kit's own faults are errors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance import Sharing, StoreFromFactory, catalogue, certify
from rulvar.conformance.certification.attribution import fault_of
from rulvar.conformance.contract import registry
from rulvar.conformance.contract.checks import fence
from rulvar.conformance.harness import child, children, store_under_test
from rulvar.conformance.harness.children import ChildDied
from rulvar.conformance.harness.interrupts import Interrupted
from rulvar.conformance.harness.stepping import has_steps
from rulvar.core import Stores, checks
from rulvar.core.testing import ReferenceStore, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.conformance import Home
    from rulvar.conformance.certification.certificate import Result
    from rulvar.core.spi import JournalRecord, Lease


class _RaisesWhenRead(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        found = super().load(run_id)
        if len(found) > 1:
            raise KeyError(run_id)
        return found


class _AnswersNothing(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        super().load(run_id)
        return None  # type: ignore[return-value] # that is the point


class _TakesText(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        with self._gate.passing():
            self._fence(run_id, lease)
            self._tables._run_to_change(run_id).records.append(record)


def _tried(store: type[ReferenceStore], clause: str) -> Result:
    def build(_: Home) -> Stores:
        journal = store()
        return Stores(journal, journal.transcripts())

    subject = StoreFromFactory("odd", build, sharing=Sharing.OBJECT)
    return certify(subject, only=[clause], seed=1).results[0]


def test_an_error_out_of_a_store_fails_the_clause_with_the_line_that_called_it() -> None:
    result = _tried(_RaisesWhenRead, "A3-next-load")
    assert result.outcome == "failed"
    assert "KeyError" in result.story
    assert "timeline:" in result.story
    assert "Traceback" not in result.story


def test_an_answer_of_another_type_fails_the_clause() -> None:
    result = _tried(_AnswersNothing, "A5-threads")
    assert result.outcome == "failed"
    assert "answer of the type that the SPI says" in result.story
    assert "builtins.TypeError" in result.story


def test_a_record_that_cannot_be_read_back_fails_the_call_that_took_it() -> None:
    result = _tried(_TakesText, "A4-refused")
    assert result.outcome == "failed"
    assert "ConfigError, and nothing changed" in result.story
    assert "it returned" in result.story


def test_what_happens_without_a_store_is_an_error_of_the_kit() -> None:
    def kit_alone() -> None:
        message = "out of threads"
        raise RuntimeError(message)

    for error in (_caught(kit_alone), ChildDied("gone")):
        assert fault_of(error) is None


def _caught(call: Callable[[], None]) -> Exception:
    with pytest.raises(RuntimeError) as caught:
        call()
    return caught.value


def _step(store: ReferenceStore) -> Callable[[], object]:
    return lambda: store.acquire("run", "owner")


def test_a_call_is_interrupted_at_each_of_its_points_and_completes_after_the_last() -> None:
    whole = Interrupted(_step(ReferenceStore()), at=0)
    assert whole.run(10)
    assert (whole.outcome, whole.hit) == ("returned", False)
    assert whole.points > 3
    for at in range(1, whole.points + 1):
        store = ReferenceStore()
        call = Interrupted(_step(store), at=at)
        assert call.run(10)
        assert (call.outcome, call.hit) == ("KeyboardInterrupt", True), at
        store.load("run")  # the lock was let go
    beyond = Interrupted(_step(ReferenceStore()), at=whole.points + 1)
    assert beyond.run(10)
    assert beyond.outcome == "returned"


def test_what_goes_wrong_where_no_answer_is_handled_is_an_error_of_the_kit() -> None:
    for module in (child, children, registry, store_under_test):
        source = "def stumble():\n    raise KeyError('no such place')\n"
        frame_globals = {**vars(module)}
        exec(compile(source, str(module.__file__), "exec"), frame_globals)
        assert fault_of(_stumbled(frame_globals["stumble"])) is None
        frame_globals["HANDLES_ANSWERS"] = True
        assert fault_of(_stumbled(frame_globals["stumble"])) is not None


def _stumbled(call: Callable[[], None]) -> Exception:
    with pytest.raises(KeyError) as caught:
        call()
    return caught.value


def test_the_clauses_of_the_fence_and_no_others_bear_company() -> None:
    beside = {clause.id for clause in catalogue() if clause.beside_others}
    assert beside == {clause.id for clause in fence.CLAUSES}


def test_what_changes_nothing_in_a_store_has_no_steps_and_a_store_has() -> None:
    assert not has_steps(str(checks.__file__))
    assert not has_steps(str(children.__file__))
    assert not has_steps(str(threading.__file__))
    assert has_steps(str(reference.__file__))
    assert has_steps(str(pytest.__file__))  # where an installed store would be
