"""The workflows that an engine knows, by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from rulvar.core.engine.code.workflow import check_workflow
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rulvar.core.engine.code.workflow import Workflow

__all__ = ["Registry"]


class Registry:
    """One workflow for each name.

    Two that stand beside one another cannot have one name. One that is defined anew where the
    old one was, as a notebook's cell does when it runs again, takes its place.
    """

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self._by_name: dict[str, Workflow] = {}
        for workflow in workflows:
            self._add(workflow, anew=False)

    @property
    def by_name(self) -> Mapping[str, Workflow]:
        """What is known, as it is at any time."""
        return MappingProxyType(self._by_name)

    def add(self, workflow: object) -> Workflow:
        """Take a workflow in, and return the one of its name.

        Raises `ConfigError` for what is no workflow, and for another of the same name.
        """
        return self._add(workflow, anew=True)

    def find(self, workflow: Workflow | str) -> Workflow:
        """Return a workflow by its name, or take it in. Raises `ConfigError` as `add`."""
        if not isinstance(workflow, str):
            return self.add(workflow)
        found = self._by_name.get(workflow)
        if found is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            message = f"this engine has no workflow {workflow!r}; it has: {known}"
            raise ConfigError(message)
        return found

    def _add(self, workflow: object, *, anew: bool) -> Workflow:
        workflow = check_workflow(workflow)
        known = self._by_name.setdefault(workflow.name, workflow)
        if known is workflow or known.body is workflow.body:
            return known
        if not (anew and _is_one_place(known, workflow)):
            message = f"two workflows have the name {workflow.name!r}: give one another name"
            raise ConfigError(message)
        self._by_name[workflow.name] = workflow
        return workflow


def _is_one_place(one: Workflow, other: Workflow) -> bool:
    """Whether two bodies were defined under one name of one module: the later is the newer.

    Functions that one function makes have one name too, and stand beside one another.
    """
    place = _place(one)
    return None not in place and "<locals>" not in str(place[1]) and place == _place(other)


def _place(workflow: Workflow) -> tuple[object, object]:
    body = workflow.body
    return getattr(body, "__module__", None), getattr(body, "__qualname__", None)
