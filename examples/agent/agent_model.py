"""What the agent needs of a model, and a scripted one that needs no network.

To use a provider's SDK, write its ten lines here and hand it to `agent.main`::

    class ProviderModel:
        def __init__(self) -> None:
            self._client = provider.AsyncClient()

        async def reply(self, messages: list[Message], *, key: str) -> Reply:
            answer = await self._client.chat(messages, tools=TOOLS, idempotency_key=key)
            calls = [Call(tool=c.name, argument=c.argument) for c in answer.tool_calls]
            return Reply(text=answer.text or "", calls=calls)

        async def summarize(self, messages: list[Message], *, key: str) -> str:
            return (await self._client.chat([*messages, SHORTER], idempotency_key=key)).text

``key`` is the same for the same turn of the same run: where a provider takes an idempotency
key, even the one call that a crash repeats is paid once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "Message", "Model", "Reply", "ScriptedModel"]


class Call(TypedDict):
    """A tool that the model wants to be run."""

    tool: str
    argument: str


class Message(TypedDict):
    """One message of the conversation; it crosses the journal, so it is plain JSON."""

    role: str
    content: str


class Reply(TypedDict):
    """What the model says: tools to run, or without any of them its answer."""

    text: str
    calls: list[Call]


class Model(Protocol):
    """What the agent needs of a model."""

    async def reply(self, messages: list[Message], *, key: str) -> Reply:
        """Say what to do next."""
        ...

    async def summarize(self, messages: list[Message], *, key: str) -> str:
        """Say the same in fewer words."""
        ...


class ScriptedModel:
    """Counts lines, two files at a time, and works out their mean; it reads what it is told.

    ``paid`` is called with the key of each call, as a provider would bill it.
    """

    def __init__(self, paid: Callable[[str], None] = lambda _key: None) -> None:
        self._paid = paid

    async def reply(self, messages: list[Message], *, key: str) -> Reply:
        """Decide from the conversation alone."""
        self._paid(key)
        files, lines, mean = _known(messages)
        if files is None:
            return _call("I look for the files.", ("find_files", "**/*.py"))
        left = [file for file in files if file not in lines]
        if left:
            return _call("I count lines.", *(("count_lines", file) for file in left[:2]))
        if not files:
            return Reply(text="There is no Python file.", calls=[])
        if mean is None:
            total = "+".join(str(lines[file]) for file in files)
            return _call("I work out the mean.", ("calculate", f"({total})/{len(files)}"))
        text = f"{len(files)} files, {sum(lines.values())} lines, {mean:.1f} on average"
        return Reply(text=text, calls=[])

    async def summarize(self, messages: list[Message], *, key: str) -> str:
        """Keep what is known."""
        self._paid(key)
        files, lines, mean = _known(messages)
        return json.dumps({"files": files, "lines": lines, "mean": mean})


def _call(text: str, *calls: tuple[str, str]) -> Reply:
    return Reply(text=text, calls=[Call(tool=tool, argument=about) for tool, about in calls])


def _known(messages: list[Message]) -> tuple[list[str] | None, dict[str, int], float | None]:
    files: list[str] | None = None
    lines: dict[str, int] = {}
    mean: float | None = None
    for message in messages:
        if message["role"] == "summary":
            kept = json.loads(message["content"])
            files, lines, mean = kept["files"], kept["lines"], kept["mean"]
        elif message["role"] == "tool":
            told = json.loads(message["content"])
            match told["tool"]:
                case "find_files":
                    files = told["result"]
                case "count_lines":
                    lines[told["argument"]] = told["result"]
                case _:
                    mean = told["result"]
    return files, lines, mean
