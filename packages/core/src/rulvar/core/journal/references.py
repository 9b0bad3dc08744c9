"""Which blobs a journal refers to: the one account, for the audit and for pruning.

============================== ============================================ ======== ======
blob                           referred to by                               required needed
============================== ============================================ ======== ======
what ``run_start`` names       ``run_start``                                yes      yes
``<run>/ckpt/<seq>``           a ``turns`` call that may go on from it      no       yes
``<run>/summary/<seq>/<n>``    the same: its checkpoint may name any        no       yes
``<run>/ckpt/<seq>``           a ``turns`` call that is complete            no       no
the same two                   a failed one whose retry is complete         no       no
``<run>/summary/<seq>/<n>``    the answer of a complete one, by name        no       no
the same                       none: its complete loop had started over     no       no
what a ``worktree`` returned   the answer of a ``worktree`` call, by name   yes      yes
============================== ============================================ ======== ======

A ``turns`` call may go on while it is not answered, and after it has failed: a retry begins
at its checkpoint, until one retry is complete. What is not needed any more is what pruning
deletes, and nothing else. A reference that is not required may be absent: a loop that crashed
in its first turn has no checkpoint. Refs are compared whole, never by prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rulvar.core.journal.queries import RUN_START

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rulvar.core.journal.entries import JournalEntry

__all__ = ["BlobReference", "BlobReferences", "referenced_blobs"]

_SUMMARY = re.compile(r"summary/(0|[1-9][0-9]*)/(0|[1-9][0-9]*)\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobReference:
    """One blob that a journal refers to, and the seq of the entry that does.

    One that is ``required`` must be there; one that is not ``needed`` may be pruned.
    """

    ref: str
    what: Literal["source", "checkpoint", "summary", "patch"]
    seq: int
    required: bool
    needed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobReferences:
    """Every blob that a journal refers to.

    ``named`` are the references by ref. ``unanswered`` are the seqs of the ``turns`` calls
    that may go on from a checkpoint, whose summaries only the checkpoint can name; ``over``
    those that are complete, or failed and have a complete retry: a summary that no answer of
    theirs names was made before they started over.
    """

    run_id: str
    named: Mapping[str, BlobReference] = field(default_factory=dict)
    unanswered: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()

    def prunable(self, there: Iterable[str]) -> list[str]:
        """Return which of the refs that are there no completed call needs, in that order."""
        return [ref for ref in there if self._is_prunable(ref)]

    def _is_prunable(self, ref: str) -> bool:
        named = self.named.get(ref)
        if named is not None:
            return not named.needed
        return self._loop_of_summary(ref) in self.over

    def _loop_of_summary(self, ref: str) -> int | None:
        run_id, _, name = ref.partition("/")
        summary = _SUMMARY.match(name)
        return int(summary[1]) if summary is not None and run_id == self.run_id else None

    def keeps(self, ref: str) -> bool:
        """Whether the blob is the run's: it needs it, may need it, or leaves it to pruning."""
        if ref in self.named:
            return True
        return self._loop_of_summary(ref) in self.unanswered | self.over


def referenced_blobs(run_id: str, entries: Iterable[JournalEntry]) -> BlobReferences:
    """Return what a journal of this engine refers to. No I/O.

    Only a journal inside the hash version window tells: another engine has its own refs.
    """
    tries: dict[int, tuple[str, str, int]] = {}
    unanswered: set[int] = set()
    complete: set[int] = set()
    outlived: set[int] = set()
    found: list[BlobReference] = []
    for entry in entries:
        if entry.kind == "turns" and entry.ref is None:
            unanswered.add(entry.seq)
            tries[entry.seq] = entry.identity
        elif entry.ref in unanswered and entry.status != "error":
            unanswered.discard(entry.ref)
            complete.add(entry.ref)
            before = {seq for seq in unanswered if tries[seq] == tries[entry.ref]}
            unanswered -= before
            outlived |= before
        found.extend(_named_by(entry))
    found.extend(
        BlobReference(
            ref=f"{run_id}/ckpt/{seq}",
            what="checkpoint",
            seq=seq,
            required=False,
            needed=seq in unanswered,
        )
        for seq in sorted(unanswered | complete | outlived)
    )
    return BlobReferences(
        run_id=run_id,
        named={reference.ref: reference for reference in found},
        unanswered=frozenset(unanswered),
        over=frozenset(complete | outlived),
    )


def _named_by(entry: JournalEntry) -> Iterator[BlobReference]:
    value = entry.value
    if not isinstance(value, dict):
        return
    refs: list[object] = []
    what: Literal["source", "summary", "patch"]
    if entry.kind == "decision" and value.get("decisionType") == RUN_START:
        what, refs = "source", [value.get("workflowSourceRef")]
    elif entry.kind == "turns" and entry.ref is not None:
        summaries = value.get("summaries")
        what, refs = "summary", summaries if isinstance(summaries, list) else []
    elif entry.kind == "worktree" and entry.ref is not None:
        what, refs = "patch", [value.get("ref")]
    else:
        return
    for ref in refs:
        if isinstance(ref, str):
            kept = what != "summary"
            yield BlobReference(ref=ref, what=what, seq=entry.seq, required=kept, needed=kept)
