"""Every check that the protocol makes, by name, and in words what is left without it.

A guard belongs to one call. Those of the fence are the same for every mutation, so they make
a table: a row for each guard, a column for each call. The rest stand alone. Every one of them
is taken away in turn, alone, and the model must then find a broken invariant. The guards in
`REDUNDANT` are taken away all at once, and nothing may change: each says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rulvar.conformance.protocol.state import MUTATIONS

if TYPE_CHECKING:
    from rulvar.conformance.protocol.rules import Off

__all__ = ["FENCE", "GUARDS", "REDUNDANT", "Guard", "named"]


class Guard(NamedTuple):
    """One check of one call.

    ``second_run`` and ``forged`` say what it takes to see that it is gone: a lease of another
    run, a lease that nobody was granted. ``redundant`` is why nothing can show it.
    """

    name: str
    call: str
    keeps: str
    without: str
    second_run: bool = False
    forged: bool = False
    redundant: str = ""

    @property
    def id(self) -> str:
        """What the command line calls it."""
        return f"{self.call}:{self.name}"

    def off(self) -> Off:
        """Return what is taken away with it."""
        return frozenset({(self.name, self.call)})


FENCE: dict[str, tuple[str, str]] = {
    "asks": ("the fence is asked at all", "it is not asked"),
    "run": ("the lease names the run", "a live lease of any run will do"),
    "above": ("the epoch is not above the tombstone", "an epoch that was never granted will do"),
    "epoch": ("the epoch is the tombstone's", "a superseded epoch is not told from the present"),
    "ended": ("there is a lease row", "a lease that was ended goes on"),
    "owner": ("the owner is the row's", "only the epoch is compared"),
    "expiry": ("the row has not run out", "the time is not looked at"),
    "unit": ("check and write are one unit", "the check comes first, the write later"),
    "first": ("the check comes before the write", "it writes, and then refuses"),
    "tells": ("a refusal is reported", "a refused call is dropped without a word"),
}
"""The guards of the fence: what each keeps, and what is left without it."""

_FENCED = (*MUTATIONS, "renew_all", "revive", "seize")
_ABOUT_A_LEASE = ("renew", "renew_all", "release", "revive")
_NOT_OF = {
    "revive": ("expiry", "ended", "first", "tells"),
    # Over an expired lease it is granted; a refusal is raised before anything is written.
    "seize": ("expiry", "first", "tells"),
}


def _table() -> list[Guard]:
    found = []
    for name, (keeps, without) in FENCE.items():
        for call in _FENCED:
            if name == "run" and call in _ABOUT_A_LEASE:
                continue  # the lease is their only argument: it names the run
            if name in _NOT_OF.get(call, ()):
                continue
            found.append(
                Guard(
                    name,
                    call,
                    keeps,
                    without,
                    second_run=name == "run",
                    forged=name in {"above", "owner"},
                )
            )
    return found


_ALONE = (
    Guard("live", "acquire", "a live lease bars", "it is granted as if it were free"),
    Guard("own", "acquire", "the holder is barred too", "the same owner string is let in"),
    Guard("expired", "acquire", "an expired lease does not bar", "it bars for ever"),
    Guard("unit", "acquire", "check and grant are one unit", "the check comes first"),
    Guard("next", "grant", "a grant counts one up", "an epoch is granted again"),
    Guard(
        "tombstone", "grant", "a grant counts from the tombstone", "it counts from the lease row"
    ),
    Guard("live", "revive", "a live lease is not revived", "its holder is granted the next"),
    Guard("expired", "seize", "an expired lease can be seized", "only a live one can be"),
    Guard("order", "append", "the seq is above the tail", "any seq lands"),
    Guard("last", "append", "the fence comes before the seq", "the seq is looked at first"),
    Guard("extends", "renew", "a renewal moves the expiry", "it is accepted and moves nothing"),
    Guard("extends", "renew_all", "it moves each live expiry", "it is accepted and moves nothing"),
    Guard("rest", "renew_all", "a dead lease hinders no other", "it stops at the first dead one"),
    Guard("ends", "release", "a release ends the lease", "it is accepted and ends nothing"),
    *(
        guard
        for call in ("delete", "delete_whole_run")
        for guard in (
            Guard("tombstone", call, "the tombstone stays", "it goes with the run"),
            Guard("ends", call, "the lease ends", "the lease stays"),
            Guard("journal", call, "the journal goes", "the journal stays"),
            Guard("meta", call, "the row goes", "the row stays"),
            Guard("parts", call, "it is all or nothing", "the journal goes first"),
        )
    ),
    *(
        Guard(
            "only",
            call,
            "no other run is touched",
            "the leases of all runs end",
            second_run=True,
        )
        for call in ("delete", "delete_whole_run", "release")
    ),
    Guard("blobs", "delete", "the blobs stay", "the blobs go"),
    Guard("blobs", "delete_whole_run", "the blobs go", "the blobs stay"),
    Guard("ends", "raise_epoch", "the lease ends", "the lease stays"),
    Guard("floor", "raise_epoch", "the epoch never falls", "it is set to what is asked for"),
    Guard("unit", "raise_epoch", "reading and raising are one unit", "it is read before"),
)

REDUNDANT: tuple[Guard, ...] = tuple(
    guard
    for call in _FENCED
    for guard in (
        Guard(
            "known",
            call,
            "there is a tombstone",
            "a run that never had a lease is not told from one that had",
            redundant=(
                "no epoch is below 1, so that a lease of a run without a tombstone is above it"
            ),
        ),
        Guard(
            "row",
            call,
            "the lease row is the tombstone's own",
            "a lease row of another epoch is believed",
            redundant=(
                "whatever moves the tombstone replaces or ends the lease row in the same unit "
                "(a-lease-row-is-the-tombstones holds in every state); kept for rows that the "
                "store did not write itself"
            ),
        ),
    )
)
"""Those that no interleaving can miss, and why."""

GUARDS: tuple[Guard, ...] = (*_table(), *_ALONE)
"""Those that the model misses when they are gone, those of the fence first."""


def named(name: str) -> list[Guard]:
    """Return the guards that ``call:name``, a call or a name stands for."""
    return [guard for guard in GUARDS if name in {guard.id, guard.call, guard.name}]
