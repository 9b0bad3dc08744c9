"""Identifiers that come out the same again from the same seed."""

from __future__ import annotations

import random
import threading
from uuid import UUID

__all__ = ["SeededIds"]


class SeededIds:
    """An `IdSource` for tests: deterministic, and unique only within one seed."""

    __slots__ = ("_lock", "_random")

    def __init__(self, seed: int | str = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)  # noqa: S311 - no secret is made of it

    def token(self) -> str:
        """Return the next 32 lower-case hex digits."""
        return f"{self._bits():032x}"

    def uuid(self) -> UUID:
        """Return the next UUID (version 4)."""
        return UUID(int=self._bits(), version=4)

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        with self._lock:
            return self._random.random()

    def _bits(self) -> int:
        with self._lock:
            return self._random.getrandbits(128)
