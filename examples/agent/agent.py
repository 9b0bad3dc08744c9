"""An agent that survives its worker: a model with tools, in a loop that is kept turn by turn.

Run it over any folder, stop it at any moment, and start it again with the same ``--run-id``:
the model calls of finished turns are not made again.

    python examples/agent/agent.py examples --database agent.db --run-id look-around

The model here follows a script, so that the example needs no account. To use a provider's
SDK, give `agent_workflow` a model of your own:

    class Provider:
        def __init__(self) -> None:
            self._client = sdk.AsyncClient()

        async def reply(self, messages: list[Message]) -> Message:
            answer = await self._client.create(messages=messages, tools=TOOL_SCHEMAS)
            if answer.tool_call is None:
                return {"role": "model", "answer": answer.text}
            call = answer.tool_call
            return {"role": "model", "tool": call.name, "input": dict(call.input)}
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import itertools
import operator
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from rulvar.core import (
    Compaction,
    Context,
    Continue,
    Done,
    Engine,
    StoreError,
    Workflow,
    assert_fenced_writes,
    open_stores,
    workflow,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Message = dict[str, object]
LONGEST = 12


class Model(Protocol):
    """What the loop needs of a model: the next message, a tool's name or an answer."""

    async def reply(self, messages: list[Message]) -> Message:
        """Return the model's next message."""
        ...


# --- tools --------------------------------------------------------------------------------


def find_files(folder: str, pattern: str) -> list[str]:
    """Return the names of the files in a folder that match a pattern."""
    return sorted(str(path) for path in Path(folder).rglob(pattern) if path.is_file())[:5]


def count_lines(name: str) -> int:
    """Return how many lines a file has."""
    return len(Path(name).read_bytes().splitlines())


def calculate(expression: str) -> int:
    """Return the value of sums and products of integers, and of nothing else."""
    operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in operators:
            return cast("int", operators[type(node.op)](value(node.left), value(node.right)))
        message = f"not a sum or a product of integers: {expression!r}"
        raise ValueError(message)

    return value(ast.parse(expression, mode="eval").body)


TOOLS: dict[str, Callable[..., object]] = {
    "find_files": find_files,
    "count_lines": count_lines,
    "calculate": calculate,
}


# --- a model that follows a script ------------------------------------------------------------


class ScriptedModel:
    """Finds the Python files of a folder, counts the lines of each, and adds them up."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def reply(self, messages: list[Message]) -> Message:
        """Decide from what was said so far, as a model does; a summary counts as said."""
        facts = _facts(messages)
        names = cast("list[str] | None", facts.get("names"))
        if names is None:
            find = {"folder": self._folder, "pattern": "*.py"}
            return {"role": "model", "tool": "find_files", "input": find}
        counts = cast("dict[str, int]", facts.get("counts", {}))
        for name in names:
            if name not in counts:
                return {"role": "model", "tool": "count_lines", "input": {"name": name}}
        if "total" not in facts:
            sums = " + ".join(str(counts[name]) for name in names) or "0"
            return {"role": "model", "tool": "calculate", "input": {"expression": sums}}
        return {"role": "model", "answer": f"{len(names)} files, {facts['total']} lines"}


def _facts(messages: list[Message]) -> dict[str, object]:
    facts: dict[str, object] = {}
    for asked, told in itertools.pairwise(messages):
        if told.get("role") == "summary":
            facts |= cast("dict[str, object]", told["facts"])
        if told.get("role") != "tool":
            continue
        given = cast("dict[str, object]", asked["input"])
        if asked["tool"] == "find_files":
            facts["names"] = told["result"]
        elif asked["tool"] == "count_lines":
            counts = cast("dict[str, int]", facts.get("counts", {}))
            facts["counts"] = counts | {str(given["name"]): told["result"]}
        else:
            facts["total"] = told["result"]
    return facts


# --- the loop -----------------------------------------------------------------------------


def agent_workflow(model: Model) -> Workflow:
    """Make the workflow of an agent over ``model``."""

    async def turn(state: object, _number: int) -> Continue[object] | Done[object]:
        messages = cast("list[Message]", state)
        said = await model.reply(messages)
        if "answer" in said:
            return Done(said["answer"])
        tool = TOOLS[str(said["tool"])]
        result = await asyncio.to_thread(tool, **cast("dict[str, str]", said["input"]))
        return Continue([*messages, said, {"role": "tool", "result": result}])

    def summarise(state: object, _turns: int) -> object:
        messages = cast("list[Message]", state)
        return [messages[0], {"role": "summary", "facts": _facts(messages)}]

    shorter = Compaction(
        when=lambda state, _turns: len(cast("list[Message]", state)) > LONGEST, make=summarise
    )

    @workflow(name="agent")
    async def agent(ctx: Context, question: str) -> object:
        start = [{"role": "user", "question": question}]
        loop = await ctx.turns("think", turn, start, max_turns=50, compact=shorter)
        return loop.result if loop.ended == "done" else f"gave up after {loop.count} turns"

    return agent


async def answer(model: Model, question: str, *, url: str, run_id: str) -> object:
    """Run the agent to its answer; wait while a predecessor's lease lives."""
    with open_stores(url) as stores:
        assert_fenced_writes(stores)
        agent = agent_workflow(model)  # once: an engine knows one workflow of a name
        async with Engine(stores) as engine:
            while True:
                try:
                    outcome = await engine.run(agent, question, run_id=run_id)
                except StoreError as error:
                    if not error.retryable:  # held by a predecessor, or busy: both pass
                        raise
                    print(f"waiting: {error}", file=sys.stderr)
                    await asyncio.sleep(0.2)
                else:
                    return outcome.unwrap()


def main() -> None:
    """Ask how many lines of Python a folder has."""
    parser = argparse.ArgumentParser(
        description="An agent whose turns are paid once.",
        epilog="example: python examples/agent/agent.py examples --run-id look-around",
    )
    parser.add_argument("folder", nargs="?", default=".", help="where to look; here by default")
    parser.add_argument("--database", default="agent.db", help="the SQLite file of the run")
    parser.add_argument("--run-id", default="agent-1", help="go on with this run, or start it")
    given = parser.parse_args()
    question = f"How many lines of Python has {given.folder}?"
    url = f"sqlite:///{given.database}?lease_ttl_ms=2000"
    print(asyncio.run(answer(ScriptedModel(given.folder), question, url=url, run_id=given.run_id)))


if __name__ == "__main__":
    main()
