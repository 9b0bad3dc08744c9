"""What a mutation is made under: a lease, or the decision of a host to go without.

There is no None: a forgotten lease must not become an unfenced write.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from rulvar.core.records import Lease

__all__ = ["UNLEASED", "Authority", "Unleased"]


class Unleased(Enum):
    """The authority of a host that runs without ownership."""

    UNLEASED = "unleased"


UNLEASED: Final = Unleased.UNLEASED
Authority = Lease | Unleased
