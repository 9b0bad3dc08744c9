"""The survey as a page for people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.protocol.formatting import difference_lines, story, wrapped
from rulvar.conformance.protocol.guards import FENCE, REDUNDANT
from rulvar.conformance.protocol.invariants import INNER, INVARIANTS, RECOVERY
from rulvar.conformance.protocol.state import MUTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.conformance.protocol.run_all import Found, Results

__all__ = ["as_json", "interleavings", "page"]

_COLUMNS = (*MUTATIONS, "renew_all", "revive", "seize")
_HEADS = {"delete_whole_run": "whole", "delete_blob": "blob del", "put_blob": "blob put"}
_HEADS |= {"renew_all": "all", "seize": "over"}


def page(done: Results) -> str:
    """Return everything but the interleavings."""
    lines = ["The protocol, explored without a gap within these bounds:"]
    for view in done.views:
        explored = view.explored
        lines.append(f"  {view.name:<12} {explored.bounds.words()}:")
        lines.append(
            f"  {'':<12} {explored.states:,} states, {explored.transitions:,} transitions, "
            f"depth {explored.depth}"
        )
        if explored.counterexample is not None:
            lines += story(explored.counterexample)
    lines += ["", *_invariants(done), "", *_guards(done.found), "", *_redundant(done)]
    if done.replays:
        lines += ["", *_replays(done)]
    tried = "" if done.replays else " in the model; no store was held against it"
    lines += ["", f"all of it holds{tried}" if done.holds else "IT DOES NOT HOLD"]
    return "\n".join(lines)


def _invariants(done: Results) -> list[str]:
    broken = {
        view.explored.counterexample.invariant.name
        for view in done.views
        if view.explored.counterexample is not None
    }
    every = (*INVARIANTS, *INNER, RECOVERY)
    lines = [f"Invariants, {len(every) - len(broken)} of {len(every)} hold in every state:"]
    for invariant in every:
        mark = "BROKEN" if invariant.name in broken else "holds"
        lines += wrapped(f"  {mark:<6} {invariant.name}", invariant.sentence, 46)
    return lines


def _guards(found: Sequence[Found]) -> list[str]:
    lengths = {(each.guard.name, each.guard.call): _length(each) for each in found}
    shown = sum(each.differs() for each in found)
    lines = [
        f"Guards taken away, one at a time: {len(found)}; shown by an interleaving: {shown}.",
        "The steps of the shortest one, for the guards of the fence:",
        f"  {'':<45}" + "".join(f"{_HEADS.get(call, call):>9}" for call in _COLUMNS),
    ]
    for name, (keeps, _) in FENCE.items():
        cells = [lengths.get((name, call), "-") for call in _COLUMNS]
        lines.append(f"  {name:<7}{keeps:<38}" + "".join(f"{cell:>9}" for cell in cells))
    lines.append("and for the others:")
    for each in found:
        if each.guard.name in FENCE and each.guard.call in _COLUMNS:
            continue
        broken = each.counterexample.invariant.name if each.counterexample else "NOT FOUND"
        lines.append(f"  {each.guard.id:<27}{each.guard.keeps:<36}{_length(each):>4}  {broken}")
    return lines


def _length(found: Found) -> str:
    if found.counterexample is None:
        return "NONE"
    return str(len(found.counterexample))


def _redundant(done: Results) -> list[str]:
    mark = "changes nothing" if done.redundant_same else "CHANGES SOMETHING"
    states = done.redundant.states if done.redundant is not None else 0
    lines = [f"Taking away these {len(REDUNDANT)} at once {mark} in {states:,} states:"]
    for name in sorted({guard.name for guard in REDUNDANT}):
        guard = next(guard for guard in REDUNDANT if guard.name == name)
        lines += wrapped(f"  {name}", f"{guard.keeps}: {guard.redundant}", 9)
    return lines


def _replays(done: Results) -> list[str]:
    lines = ["Replayed, every answer and all that can be read compared:"]
    for replay in done.replays:
        lines.append(f"  {replay.store}:")
        lines.append(
            f"    {replay.traces:,} traces of {replay.calls:,} steps took every one of "
            f"{replay.transitions:,} transitions;"
        )
        lines.append(
            f"    {replay.counterexamples} counterexamples of missing guards were answered right"
        )
        if replay.difference is not None:
            lines += [f"    {replay.store} DIFFERS:", *difference_lines(replay.difference)]
    return lines


def interleavings(found: Sequence[Found]) -> str:
    """Return every counterexample, step by step."""
    lines = []
    for each in found:
        guard = each.guard
        lines.append(f"{guard.id}: {guard.keeps}; without it, {guard.without}")
        if each.counterexample is None:
            lines.append(f"      nothing found in {each.explored.states:,} states")
        else:
            lines += story(each.counterexample)
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def as_json(done: Results) -> dict[str, object]:
    """Return the survey as a JSON object."""
    return {
        "holds": done.holds,
        "seconds": round(done.seconds, 1),
        "views": [
            {
                "name": view.name,
                "bounds": view.explored.bounds.words(),
                "states": view.explored.states,
                "transitions": view.explored.transitions,
                "depth": view.explored.depth,
                "broken": view.explored.counterexample
                and view.explored.counterexample.invariant.name,
            }
            for view in done.views
        ],
        "invariants": {each.name: each.sentence for each in (*INVARIANTS, *INNER, RECOVERY)},
        "guards": [_guard_as_json(each) for each in done.found],
        "redundant": {
            "guards": {guard.id: guard.redundant for guard in REDUNDANT},
            "changes_nothing": done.redundant_same,
        },
        "replays": [
            {
                "store": replay.store,
                "traces": replay.traces,
                "steps": replay.calls,
                "transitions": replay.transitions,
                "counterexamples": replay.counterexamples,
                "difference": replay.difference and difference_lines(replay.difference),
            }
            for replay in done.replays
        ],
    }


def _guard_as_json(found: Found) -> dict[str, object]:
    known = found.counterexample
    return {
        "id": found.guard.id,
        "keeps": found.guard.keeps,
        "without": found.guard.without,
        "states": found.explored.states,
        "transitions": found.explored.transitions,
        "broken": known and known.invariant.name,
        "length": known and len(known),
        "interleaving": known and story(known),
    }
