"""Standard streams that are closed, full or broken: what was done stands, the status says it."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

from rulvar.cli.main import _own_warnings, main
from rulvar.cli.output import Output
from rulvar.core.memory import EphemeralStoreWarning

if TYPE_CHECKING:
    from pathlib import Path

FLOWS = """
from rulvar.core import workflow

@workflow
async def one(ctx):
    return await ctx.step("one", lambda: 1)

@workflow
async def waits(ctx):
    return await ctx.await_external("go")
"""

RUN = ("run", "one", "--app", "cli_streams_flows", "--store", "sqlite:///runs.db")


class Broken(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, number: int, *, keeps: bool = True) -> None:
        super().__init__()
        self.number = number
        self.keeps = keeps

    def write(self, text: str) -> int:  # noqa: ARG002 - it is not even looked at
        raise OSError(self.number, os.strerror(self.number))

    def flush(self) -> None:
        if self.keeps:  # an unbuffered stream has nothing left to write
            self.write("")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_streams_flows.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_streams_flows", raising=False)
    return tmp_path


def rulvar(*args: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(args)
    return ended.value.code


def statuses(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert rulvar("runs", "ls", "--store", "sqlite:///runs.db") == 0
    return [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
@pytest.mark.parametrize("json", [True, False])
def test_a_result_that_cannot_be_written_has_a_status_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, json: bool
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Broken(number))
        assert rulvar(*RUN, *(("--json",) if json else ())) == 74
    told = capsys.readouterr().err
    # Whoever has read enough of a pipe is not told that it is closed.
    assert ("standard output cannot be written" in told) == (number == errno.ENOSPC)
    assert "Traceback" not in told
    assert statuses(capsys) == ["ok"], "what was done stands"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("args", [("runs", "ls"), ("runs", "ls", "--nope"), ("runs", "show", "x")])
def test_an_error_keeps_its_status_though_nobody_hears_it(
    monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Broken(errno.ENOSPC))
    assert rulvar(*args, "--json", "--store", "sqlite:///none.db") == 2


@pytest.mark.usefixtures("project")
def test_messages_that_cannot_be_written_stop_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Broken(errno.ENOSPC))
        assert rulvar("run", "nope", *RUN[2:]) == 2
        assert rulvar("runs", "ls", "--nope") == 2
        assert rulvar(*RUN) == 0
    assert capsys.readouterr().out == "1\n"
    assert statuses(capsys) == ["ok"]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("json", [True, False])
def test_a_worker_that_nobody_hears_works_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, json: bool
) -> None:
    assert rulvar("run", "waits", *RUN[2:], "--run-id", "w") == 6
    assert rulvar("resolve", "w", "go", "1", *RUN[4:]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Broken(errno.ENOSPC))
        args = ("worker", "--until-idle", *RUN[2:], *(("--json",) if json else ()))
        assert rulvar(*args) == 74
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2, told
    assert "the worker continues without its log" in told[0]
    assert statuses(capsys) == ["ok"]


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("args", [("--help",), ("run", "--help"), ("--version",)])
def test_a_help_that_cannot_be_written_says_so(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    keeps: bool,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Broken(errno.ENOSPC, keeps=keeps))
        assert rulvar(*args) == 74
    assert capsys.readouterr().err.startswith("error: standard output cannot be written")


def test_a_help_whose_reader_has_gone_ends_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Broken(errno.EPIPE))
        assert rulvar("--help") == 74
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_the_null_device(project: Path, closed: str) -> None:
    command = [sys.executable, "-m", "rulvar.cli", *RUN, "--args", "-"]
    if closed != "0<&-":
        command = command[:-2]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {closed}', *command],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if closed == "0<&-":
        assert (done.returncode, done.stdout) == (2, "")
        assert "--args from standard input is not one JSON value" in done.stderr
    else:
        assert done.returncode == 0
        assert done.stdout == ("" if closed == ">&-" else "1\n")


def test_a_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert rulvar("runs", "ls", "--store", "sqlite:///runs.db") == 2
    assert "the current folder no longer exists" in capsys.readouterr().err


def test_a_warning_of_ours_is_a_message_and_no_line_of_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (  # noqa: PT031 - ours must not get there
        pytest.warns(UserWarning, match="somebody else's") as theirs,
        _own_warnings(Output()),
    ):
        warnings.warn("nothing is kept", EphemeralStoreWarning, stacklevel=1)
        warnings.warn("somebody else's", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: nothing is kept\n"
    assert len(theirs) == 1
