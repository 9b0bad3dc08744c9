"""What the page on the file store shows is what the store does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileStores
from rulvar.stores.file.lines import DamageKind
from rulvar.stores.file.names import encode_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "stores" / "file-store.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def fill(root: Path) -> None:
    with FileStores(root) as stores:
        stores.journal.append("order-17", JournalRecord(seq=0, payload=b'{"seq":0}'))
        stores.journal.put_meta(RunMeta(run_id="order-17", status="ok", updated_at="now"))
        stores.transcripts.put("order-17/turns/000001.json", b"blob")


def test_the_folder_is_as_it_is_drawn(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    fill(root)
    [drawing] = blocks("text")
    named = re.findall(r"[\w/.%-]+\.(?:jsonl|json|lock)|\w+/(?=[ ,])", drawing)
    assert all((root / name).exists() for name in named), named
    tops = {name.split("/")[0] for name in named}
    assert tops == {each.name for each in root.iterdir()}


def test_the_names_are_as_they_are_shown() -> None:
    shown = re.findall(r"^\| `([^`.]+)` \| `([^`]+)`", PAGE, re.MULTILINE)
    assert len(shown) == 3
    assert all(encode_name(text) == name for name, text in shown)


def test_every_kind_of_damage_is_named() -> None:
    table = PAGE.partition("\n## Damage\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == set(get_args(DamageKind))


@pytest.mark.slow
def test_the_commands_work_as_they_stand(tmp_path: Path) -> None:
    fill(tmp_path / "runs")
    journal = tmp_path / "runs" / "journals" / "order-17.jsonl"
    sound = journal.read_bytes()
    journal.write_bytes(sound + b"no record\n")
    statuses: list[tuple[str, int]] = []
    for line in "".join(blocks("sh")).splitlines():
        command = shlex.split(line)
        assert command[0] == "rulvar"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "rulvar.cli", *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        statuses.append((command[-1], done.returncode))
    assert statuses == [("file:///runs", 1), ("--apply", 0), ("sqlite:///runs.db", 0)]
    assert journal.read_bytes() == sound
    assert (tmp_path / "runs.db").exists()
