"""A workflow: an async body under a name, with the source it was written in."""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import overload

from rulvar.core.checks import check_workflow_name
from rulvar.core.errors import ConfigError

__all__ = ["NOT_GIVEN", "Body", "Workflow", "check_workflow", "workflow"]


class _NotGiven:
    """Tells arguments that were left out from None."""

    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN = _NotGiven()

Body = Callable[..., Awaitable[object]]
"""``async def body(ctx)`` or ``async def body(ctx, args)``; args is one JSON value."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A body that an engine can run, and resume in another process under the same name.

    ``hash`` pins the body's source text; ``takes_args`` says whether the body has a second
    parameter.
    """

    name: str
    body: Body
    source: str = field(repr=False)
    hash: str = field(repr=False)
    takes_args: bool = field(repr=False)
    needs_args: bool = field(repr=False)

    @classmethod
    def of(cls, body: Body, *, name: str | None = None) -> Workflow:
        """Make a workflow of an async function.

        ``name`` defaults to the function's. Raises `ConfigError` when the body is no async
        function of a context and at most one more argument.
        """
        shown = getattr(body, "__qualname__", repr(body))
        if not inspect.iscoroutinefunction(body):
            message = f"the body {shown} must be an async function: write 'async def'"
            raise ConfigError(message)
        parameters = [
            parameter
            for parameter in inspect.signature(body).parameters.values()
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        required = [p for p in parameters if p.default is inspect.Parameter.empty]
        if not len(parameters) >= 1 or len(required) > len(("ctx", "args")):
            message = f"the body {shown} must take (ctx) or (ctx, args): one JSON value"
            raise ConfigError(message)
        source = _source(body)
        return cls(
            name=check_workflow_name(body.__name__ if name is None else name),
            body=body,
            source=source,
            hash="sha256:" + hashlib.sha256(source.encode("utf-8")).hexdigest(),
            takes_args=len(parameters) > 1,
            needs_args=len(required) > 1,
        )

    def check_args(self, *, provided: bool) -> None:
        """Refuse arguments that the body does not take, or their absence where it needs them.

        Raises `ConfigError`.
        """
        if provided and not self.takes_args:
            message = f"workflow {self.name!r} takes no arguments: leave args out"
            raise ConfigError(message)
        if not provided and self.needs_args:
            message = f"workflow {self.name!r} needs arguments: give args, one JSON value"
            raise ConfigError(message)

    def call(self, ctx: object, *, provided: bool, args: object) -> Awaitable[object]:
        """Start the body."""
        return self.body(ctx, args) if provided else self.body(ctx)


def check_workflow(workflow: object, /) -> Workflow:
    """Take a workflow. Raises `ConfigError` for anything else, a bare function too."""
    if not isinstance(workflow, Workflow):
        message = f"{workflow!r} is no Workflow: decorate its body with @workflow"
        raise ConfigError(message)
    return workflow


def _source(body: Body) -> str:
    try:
        return textwrap.dedent(inspect.getsource(body))
    except (OSError, TypeError):
        # Typed in at a prompt or compiled from a string: there is no text to keep.
        return f"# the source of {body.__module__}.{body.__qualname__} is not available\n"


@overload
def workflow(body: Body, /) -> Workflow: ...
@overload
def workflow(*, name: str | None = None) -> Callable[[Body], Workflow]: ...
def workflow(
    body: Body | None = None, /, *, name: str | None = None
) -> Workflow | Callable[[Body], Workflow]:
    """Make a workflow of an async function: ``@workflow`` or ``@workflow(name="...")``.

    Raises `ConfigError` as `Workflow.of` does.
    """
    if body is not None:
        return Workflow.of(body)
    return lambda body: Workflow.of(body, name=name)
