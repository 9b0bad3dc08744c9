"""What a failed group was made of, in a form that crosses the journal."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FailureMember", "members_from_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMember:
    """One exception of an `ExceptionGroup`: its class, its message, and its own members."""

    error_type: str
    message: str
    members: tuple[FailureMember, ...] = ()

    def __str__(self) -> str:
        """Return class and message, with the members of a group behind them."""
        inner = "; ".join(map(str, self.members))
        return f"{self.error_type}: {self.message}" + (f" [{inner}]" if inner else "")

    def to_json(self) -> dict[str, object]:
        """Return the form that stands in an entry's ``error`` member."""
        data: dict[str, object] = {"type": self.error_type, "message": self.message}
        if self.members:
            data["members"] = [member.to_json() for member in self.members]
        return data


def members_from_json(value: object, *, depth: int = 20) -> tuple[FailureMember, ...]:
    """Read a list of members, tolerating what another writer left out."""
    if not isinstance(value, list) or not depth:
        return ()
    return tuple(
        FailureMember(
            error_type=str(one.get("type", "unknown")),
            message=str(one.get("message", "")),
            members=members_from_json(one.get("members"), depth=depth - 1),
        )
        for one in value
        if isinstance(one, dict)
    )
