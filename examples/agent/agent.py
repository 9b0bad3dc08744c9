"""An agent that outlives its process: a model, tools, and a loop that is kept turn by turn.

Run it, kill it anywhere, run it again: the turns that were completed are not paid again::

    python examples/agent/agent.py DIRECTORY

The model is scripted here; `agent_model` shows where a provider's SDK goes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from agent_model import Message, ScriptedModel
from agent_tools import run_tool
from rulvar.core import (
    Compaction,
    Context,
    Done,
    Engine,
    GoOn,
    LeaseHeldError,
    RunOutcome,
    Workflow,
    assert_fenced_writes,
    open_stores,
    workflow,
)

if TYPE_CHECKING:
    from agent_model import Model
    from rulvar.core import FencedStores

LONGEST = 8
"""How many messages a conversation may have before it is summarized."""


class Task(TypedDict):
    """The run's arguments."""

    directory: str
    question: str


class State(TypedDict):
    """What one turn hands to the next; it is kept after every turn."""

    messages: list[Message]


def make_agent(model: Model) -> Workflow:
    """Make the workflow over a model."""

    @workflow(name="agent")
    async def agent(ctx: Context, task: Task) -> str:
        async def turn(state: State, number: int) -> GoOn[State] | Done[str]:
            messages = state["messages"]
            reply = await model.reply(messages, key=f"{ctx.run_id}/turn/{number}")
            if not reply["calls"]:
                return Done(reply["text"])
            messages = [*messages, Message(role="assistant", content=reply["text"])]
            for call in reply["calls"]:
                result = await asyncio.to_thread(
                    run_tool, task["directory"], call["tool"], call["argument"]
                )
                told = json.dumps({**call, "result": result})
                messages.append(Message(role="tool", content=told))
            return GoOn(State(messages=messages))

        async def shorten(state: State, turns: int) -> State:
            messages = state["messages"]
            summary = await model.summarize(messages, key=f"{ctx.run_id}/summary/{turns}")
            return State(messages=[messages[0], Message(role="summary", content=summary)])

        done = await ctx.turns(
            "converse",
            turn,
            State(messages=[Message(role="user", content=task["question"])]),
            max_turns=100,
            deadline_ms=3_600_000,
            compact=Compaction(
                when=lambda state, _turns: len(state["messages"]) > LONGEST, make=shorten
            ),
        )
        if done.ended != "done":
            return f"no answer after {done.count} turns: {done.ended}"
        return str(done.result)

    return agent


async def run(stores: FencedStores, model: Model, task: Task, run_id: str) -> RunOutcome:
    """Start the run, or go on with it; wait while somebody else has it."""
    async with Engine(stores) as engine:
        while True:
            try:
                return await engine.run(make_agent(model), task, run_id=run_id)
            except LeaseHeldError as held:
                # A process that was killed keeps its lease until that has run out.
                print(f"waiting: {held.holder} has the run", file=sys.stderr)
                await asyncio.sleep(0.2)


def main(model: Model | None = None) -> None:
    """Ask one question about one directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", default=str(Path(__file__).parent))
    parser.add_argument("--store", default="sqlite:///agent.db?lease_ttl_ms=2000")
    parser.add_argument("--run", default="agent")
    options = parser.parse_args()
    paid: list[str] = []
    task = Task(
        directory=str(Path(options.directory).resolve()),
        question="How many lines do the Python files have, in all and on average?",
    )
    with open_stores(options.store) as opened:
        stores = assert_fenced_writes(opened)  # without the fence, a zombie could overwrite turns
        outcome = asyncio.run(
            run(stores, model or ScriptedModel(paid.append), task, run_id=options.run)
        )
    print(f"{outcome.unwrap()}; {len(paid)} model calls paid in this process")


if __name__ == "__main__":
    main()
