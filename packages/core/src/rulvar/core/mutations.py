"""The store calls that change a run or its lease, by one name each.

The probe, the events, the counters, the command line, the soak and the model of the protocol
all use these names.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["Mutation"]

Mutation = Literal[
    "append",
    "put_meta",
    "put_blob",
    "delete_blob",
    "delete",
    "delete_whole_run",
    "acquire",
    "renew",
    "renew_all",
    "revive",
    "seize",
    "release",
]
"""``put_blob`` and ``delete_blob`` are ``put`` and ``delete`` of a transcript store; every other
one is the call of that name of a journal store."""
