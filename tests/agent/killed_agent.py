"""The agent of the example, whose model notes each call, and may be the death of its process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "agent"))

from agent import ScriptedModel, answer

if TYPE_CHECKING:
    from agent import Message


class MortalModel(ScriptedModel):
    """Counts what is paid for, by the number of messages that it was sent; dies at one call."""

    def __init__(self, folder: str, calls: Path, dies_at: int, when: str) -> None:
        super().__init__(folder)
        self._calls = calls
        self._dies_at = dies_at
        self._when = when

    async def reply(self, messages: list[Message]) -> Message:
        paid = self._calls.read_text().splitlines() if self._calls.exists() else []
        if len(paid) == self._dies_at and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        said = await super().reply(messages)
        with self._calls.open("a") as file:
            file.write(f"{said.get('tool', 'answer')} {said.get('input')}\n")
        if len(paid) == self._dies_at and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return said


def main() -> None:
    folder, database, calls, dies_at, when = sys.argv[1:]
    model = MortalModel(folder, Path(calls), int(dies_at), when)
    url = f"sqlite:///{database}?lease_ttl_ms=900"
    told = asyncio.run(answer(model, "How many lines?", url=url, run_id="agent"))
    sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main()
