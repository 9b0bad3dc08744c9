"""The model of the protocol: it holds, each guard is missed, and the stores do as it does."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest
from gallery_defects import DEFECTS, SOUND, register, subject

from rulvar.conformance import StoreAtUrl, StoreFromFactory
from rulvar.conformance.harness import machine_clock
from rulvar.conformance.protocol import cli
from rulvar.conformance.protocol.cli import main, reference_subject
from rulvar.conformance.protocol.explore import explore
from rulvar.conformance.protocol.formatting import difference_lines
from rulvar.conformance.protocol.guards import GUARDS, REDUNDANT
from rulvar.conformance.protocol.invariants import INNER, INVARIANTS, RECOVERY
from rulvar.conformance.protocol.replay import Stage
from rulvar.conformance.protocol.report import as_json, interleavings, page
from rulvar.conformance.protocol.run_all import Found, Plan, look_for, run_all
from rulvar.conformance.protocol.state import Bounds
from rulvar.conformance.protocol.traces import covering
from rulvar.core import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.conformance.protocol.explore import Exploration
    from rulvar.conformance.protocol.guards import Guard
    from rulvar.conformance.protocol.invariants import Invariant
    from rulvar.conformance.protocol.rules import Off
    from rulvar.conformance.protocol.state import Action, Call

register()
_SMALL = Plan.of()
_TINY = Bounds(owners=2, epochs=2, flights=0)
_TWO = replace(_TINY, runs=2)
_TINIEST = replace(_TINY, epochs=1)


@cache
def _found(guard: Guard) -> Found:
    return Found(guard, look_for(guard))


@cache
def _graph(bounds: Bounds) -> Exploration:
    return explore(bounds, keep=True)


# --- the model ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds", [replace(_TINIEST, flights=1), _TINY, replace(_TINY, epochs=1, runs=2)]
)
def test_every_invariant_holds_in_every_state(bounds: Bounds) -> None:
    explored = explore(bounds)
    assert explored.counterexample is None
    assert explored.states > 150
    assert explored.transitions > 7_000


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.id)
def test_a_missing_guard_is_shown_by_an_interleaving_that_differs_at_its_last_step(
    guard: Guard,
) -> None:
    found = _found(guard)
    assert found.counterexample is not None
    assert found.differs()


def test_the_redundant_guards_change_nothing_and_every_guard_has_an_id_of_its_own() -> None:
    off: Off = frozenset().union(*(guard.off() for guard in REDUNDANT))
    assert explore(_TINY, off, judged=INVARIANTS + INNER).nodes == explore(_TINY).nodes
    ids = [guard.id for guard in (*GUARDS, *REDUNDANT)]
    assert len(ids) == len(set(ids))


_BREAKS: dict[str, tuple[Off, Bounds]] = {
    "superseded-changes-nothing": (frozenset({("asks", "append")}), _TINY),
    "only-the-live-lease-lands": (frozenset({("ended", "append")}), _TINY),
    "a-seizure-over-a-lease-takes-that-one": (frozenset({("run", "seize")}), _TWO),
    "renew-all-is-each-renewal": (frozenset({("rest", "renew_all")}), _TINY),
    "epochs-grow-for-ever": (frozenset({("tombstone", "delete")}), _TINY),
    "one-holder": (frozenset({("own", "acquire")}), _TINY),
    "refused-changes-nothing": (frozenset({("first", "put_meta")}), _TINY),
    "journal-epochs-never-fall": (frozenset({("epoch", "append")}), replace(_TINY, things=2)),
    "journal-in-order": (frozenset({("order", "append")}), replace(_TINY, things=2)),
    "deletion-leaves-nothing": (frozenset({("blobs", "delete_whole_run")}), _TINY),
    "landed-is-there": (frozenset({("extends", "renew")}), _TINY),
    "other-runs-untouched": (frozenset({("only", "release")}), replace(_TINY, runs=2)),
    "the-live-lease-lands": (frozenset({("extends", "renew")}), _TINY),
    "a-free-run-is-granted": (frozenset({("expired", "acquire")}), _TINY),
    "held-is-live": (frozenset({("expired", "acquire")}), _TINY),
    "the-reason-is-the-first-that-holds": (frozenset({("last", "append")}), _TINY),
    "the-tombstone-outlives-everything": (frozenset({("tombstone", "delete")}), _TINY),
    "the-lease-row-is-the-truth": (frozenset({("ends", "raise_epoch")}), _TINY),
    "a-lease-row-is-the-tombstones": (frozenset({("ends", "raise_epoch")}), _TINY),
}


@pytest.mark.slow
@pytest.mark.parametrize("invariant", INVARIANTS + INNER, ids=lambda each: each.name)
def test_every_invariant_can_be_broken_and_is_seen_alone(invariant: Invariant) -> None:
    off, bounds = _BREAKS[invariant.name]
    broken = explore(bounds, off, judged=(invariant,)).counterexample
    assert broken is not None
    assert broken.invariant is invariant
    assert explore(bounds, judged=(invariant,)).counterexample is None


def test_an_expired_lease_that_nobody_took_is_to_be_revived() -> None:
    [free] = [each for each in INVARIANTS if each.name == "a-free-run-is-granted"]
    off: Off = frozenset({("expiry", "revive")})
    broken = explore(_TINY, off, judged=(free,)).counterexample
    assert broken is not None
    assert broken.moments[-1].action.call == "revive"
    assert broken.moments[-1].answer.reason == "held"


@pytest.mark.parametrize(
    ("calls", "off"),
    [
        # Without time the lease of a holder that died lives for ever.
        (_TINY.calls - {"time"}, frozenset[tuple[str, str]]()),
        # With it, an expired lease bars, and cannot be revived.
        (_TINY.calls, frozenset({("expired", "acquire"), ("expiry", "revive")})),
    ],
)
def test_a_run_that_nobody_can_have_back_is_lost(calls: frozenset[Call], off: Off) -> None:
    lost = explore(replace(_TINY, calls=calls), off, judged=()).counterexample
    assert lost is not None
    assert lost.invariant is RECOVERY
    assert len(lost) == 1
    assert explore(_TINY, judged=()).counterexample is None


def test_time_alone_moves_one_run_and_comes_back() -> None:
    explored = explore(replace(_TINY, calls=frozenset({"acquire", "time"})))
    ages = {row.age for node in explored.nodes if (row := node.state.runs[0].row) is not None}
    assert ages == {0, 1, 2}


# --- the traces -----------------------------------------------------------------------------


def test_the_traces_take_every_transition_and_are_connected() -> None:
    explored = _graph(_TINIEST)
    taken: set[tuple[int, Action]] = set()
    new = 0
    for trace in covering(explored):
        node = 0
        for stride in trace:
            assert stride.edge in explored.edges[node]
            assert stride.new == ((node, stride.edge.action) not in taken)
            taken.add((node, stride.edge.action))
            new += stride.new
            node = stride.edge.target
    assert len(taken) == new == explored.transitions


# --- the stores -----------------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.parametrize("name", sorted(SOUND))
def test_a_sound_store_does_as_the_model_does_and_refutes_every_counterexample(name: str) -> None:
    stage = Stage(subject(SOUND[name]))
    try:
        assert stage.cover(_graph(_TINIEST)), stage.replay.difference
        for guard in GUARDS:
            found = _found(guard).counterexample
            assert found is not None
            assert stage.refute(found), (guard.id, stage.replay.difference)
    finally:
        stage.close()
    assert stage.replay.counterexamples == len(GUARDS)
    assert stage.replay.transitions == _graph(_TINIEST).transitions


@pytest.mark.slow
def test_a_store_behind_a_url_lives_by_a_clock_that_is_moved_and_given_back() -> None:
    stage = Stage(StoreAtUrl("sqlite://"))
    try:
        assert stage.cover(_graph(_TINIEST)), stage.replay.difference
    finally:
        stage.close()
    assert machine_clock.offset_ms() == 0
    assert stage.replay.transitions > 400
    assert stage.replay.calls > stage.replay.transitions


_WITHIN_A_CALL = ("-atomic", "F-time-in-lock")
_CAUGHT = (
    *(
        name
        for name, each in sorted(DEFECTS.items())
        if name.startswith("reference-")
        and each.breaks.startswith("F-")
        and not each.breaks.endswith(_WITHIN_A_CALL)
    ),
    "reference-acquire-reentrant",
    "reference-delete-loses-tombstone",
    "reference-delete-whole-run-remembers-tail",
    "reference-fence-dead-before-expiry",
    "reference-fence-names-dead-holder",
    "reference-get-lease-calls-dead-live",
    "reference-raise-epoch-lowers",
    "reference-renew-all-hides-refusals",
    "reference-renew-all-renews-nothing",
    "reference-renew-all-stops",
    "reference-renew-does-nothing",
    "reference-seize-over-live-alone",
    "sqlite-append-fenced-by-owner",
    "sqlite-blob-before-fence",
    "sqlite-epoch-in-lease-row",
)


@pytest.mark.storm
@pytest.mark.parametrize("name", _CAUGHT)
def test_a_broken_store_is_caught_by_the_replay(name: str) -> None:
    one, two = _SMALL.replayed
    stage = Stage(subject(DEFECTS[name]))
    try:
        assert not stage.cover(_graph(two if "foreign" in DEFECTS[name].breaks else one))
    finally:
        stage.close()
    assert stage.replay.difference is not None
    expected, got = difference_lines(stage.replay.difference)[-2:]
    assert expected.removeprefix("      expected: ") != got.removeprefix("      got:      ")


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        ("reference-release-by-run", "release:asks"),
        ("reference-delete-loses-tombstone", "delete:tombstone"),
        ("reference-acquire-reentrant", "acquire:own"),
        ("reference-renew-all-hides-refusals", "renew_all:tells"),
        ("reference-seize-over-live-alone", "seize:expired"),
        ("reference-fence-ignores-owner", "append:owner"),
        ("sqlite-blob-before-fence", "put_blob:first"),
    ],
)
def test_a_broken_store_falls_to_the_counterexample_of_the_guard_it_lacks(
    name: str, guard: str
) -> None:
    [lacking] = [each for each in GUARDS if each.id == guard]
    found = _found(lacking).counterexample
    assert found is not None
    for store, refutes in ((SOUND[name.partition("-")[0]], True), (DEFECTS[name], False)):
        stage = Stage(subject(store))
        try:
            assert stage.refute(found) is refutes
        finally:
            stage.close()


def test_a_store_that_cannot_be_replayed_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fenced_writes"):
        Stage(subject(DEFECTS["reference-marker-truthy"]))
    with pytest.raises(ConfigError, match="relative path"):
        Stage(StoreAtUrl(f"sqlite:///{tmp_path.as_posix()}/runs.db"))


def test_a_store_with_a_clock_of_its_own_is_not_called_wrong() -> None:
    stopped = StoreFromFactory("stopped", cli._open_reference, sharing="object", takes_clock=False)
    real = machine_clock.set_offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_clock, "set_offset", lambda ms: real(0 * ms))
        with pytest.raises(ConfigError, match=r"takes home\.clock"):
            Stage(stopped)


# --- the command ----------------------------------------------------------------------------


def test_the_command_shows_what_is_found_without_a_guard(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--guard", "append:unit"]) == 0
    shown = capsys.readouterr().out
    assert "ann       append under (ann, epoch 1): the write           landed" in shown
    assert "expected: refused (superseded)" in shown


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--guard", "nix"], "give one as the report names it"),
        (["--owners", "9"], "at most 4"),
        (["--epochs", "0"], "1 or more"),
    ],
)
def test_a_wrong_order_is_refused_with_a_remedy(
    arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert remedy in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_the_survey_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "run_all", partial(run_all, guards=GUARDS[:4]))
    assert main(["--json", "--epochs", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is True
    assert [len(each["interleaving"]) > 3 for each in told["guards"]] == [True] * 4
    assert told["replays"][0]["counterexamples"] == 4


@pytest.mark.slow
def test_a_store_that_differs_is_told_and_does_not_hold() -> None:
    plan = Plan(views=(("tiny", _TINIEST),), replayed=(_TINY,))
    broken = subject(DEFECTS["reference-renew-does-nothing"])
    done = run_all(plan, [reference_subject(), broken], guards=GUARDS[:2])
    assert not done.holds
    assert [replay.difference is None for replay in done.replays] == [True, False]
    assert "reference-renew-does-nothing DIFFERS" in page(done)
    assert as_json(done)["holds"] is False
    assert interleavings(done.found).count("broken:") == 2
