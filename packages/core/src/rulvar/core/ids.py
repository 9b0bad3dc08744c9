"""Randomness comes in as an argument: where tokens, owners and run ids are minted."""

from __future__ import annotations

import random
import uuid
from typing import Protocol

__all__ = ["IdSource", "SystemIds"]


class IdSource(Protocol):
    """What mints identifiers and random numbers for an engine."""

    def token(self) -> str:
        """Return a fresh identifier that no other owner has: 32 lower-case hex digits."""
        ...

    def uuid(self) -> uuid.UUID:
        """Return a fresh random UUID (version 4)."""
        ...

    def random(self) -> float:
        """Return a fresh random number in [0, 1)."""
        ...


class SystemIds:
    """Identifiers from the operating system's entropy; safe across threads and forks."""

    __slots__ = ("_random",)

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def token(self) -> str:
        """Return 32 lower-case hex digits."""
        return uuid.uuid4().hex

    def uuid(self) -> uuid.UUID:
        """Return a random UUID."""
        return uuid.uuid4()

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return self._random.random()
