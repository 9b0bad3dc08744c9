"""Whether the full fence is declared, and whether it holds (contract.md#start-up-checks).

`assert_fenced_writes` trusts a declaration and costs nothing; call it before the first run.
`probe_fencing` trusts behaviour: on a throw-away run it is superseded, and expects every
mutation to be refused by this very database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, overload

from rulvar.core._probe_report import (
    FencingReport,
    ProbeFinding,
    ProbeLease,
    ProbeOutcome,
)
from rulvar.core._probing import probe_fencing
from rulvar.core.capabilities import (
    declares_fenced_writes,
    fencing_domain_of,
    has_fenced_journal,
    has_fenced_transcripts,
)
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from rulvar.core.protocols import (
        FencedJournalStore,
        FencedTranscriptStore,
        JournalStore,
        TranscriptStore,
    )
    from rulvar.core.stores import FencedStores, StorePair

__all__ = [
    "FencingReport",
    "ProbeFinding",
    "ProbeLease",
    "ProbeOutcome",
    "assertFencedWrites",
    "assert_fenced_writes",
    "hasFencedWrites",
    "has_fenced_writes",
    "probe_fencing",
]


@overload
def has_fenced_writes(store: JournalStore, /) -> TypeIs[FencedJournalStore]: ...
@overload
def has_fenced_writes(store: TranscriptStore, /) -> TypeIs[FencedTranscriptStore]: ...
@overload
def has_fenced_writes(store: object, /) -> bool: ...
def has_fenced_writes(store: object, /) -> bool:
    """Whether a journal or transcript store declares the fence on every mutation.

    Declared means that ``store.fenced_writes is True`` and that the methods which take the
    lease are there. Calls none of them.
    """
    return has_fenced_journal(store) or has_fenced_transcripts(store)


def assert_fenced_writes(stores: StorePair, /) -> FencedStores:
    """Return ``stores`` itself, typed as fenced, or refuse to start without the full fence.

    Raises `ConfigError` naming every store of the pair that does not declare the marker,
    and for a pair whose declared ``fencing_domain`` differs: two databases cannot fence
    each other (contract.md#start-up-checks).
    """
    journal: object = stores.journal
    transcripts: object = stores.transcripts
    missing = [
        _undeclared(part, store)
        for part, store, fenced in (
            ("journal", journal, has_fenced_journal(journal)),
            ("transcript", transcripts, has_fenced_transcripts(transcripts)),
        )
        if not fenced
    ]
    if missing:
        message = (
            f"{' and '.join(missing)}: a stalled worker could change a run that another owns; "
            "open a pair that is fenced, for example sqlite:///<path>"
        )
        raise ConfigError(message)
    ours, theirs = fencing_domain_of(journal), fencing_domain_of(transcripts)
    if ours is not None and theirs is not None and ours != theirs:
        message = (
            f"the journal store commits in {ours!r} and the transcript store in {theirs!r}: the "
            "leases of one cannot fence the other; use the journal store's own transcripts()"
        )
        raise ConfigError(message)
    return cast("FencedStores", stores)


def _undeclared(part: str, store: object) -> str:
    kind = f"{type(store).__module__}.{type(store).__qualname__}"
    if declares_fenced_writes(store):
        return f"the {part} store {kind} declares fenced_writes but lacks the methods of the fence"
    return f"the {part} store {kind} does not declare fenced_writes = True"


# The names of the proposal that the fence comes from (contract.md#start-up-checks).
hasFencedWrites = has_fenced_writes  # noqa: N816
assertFencedWrites = assert_fenced_writes  # noqa: N816
