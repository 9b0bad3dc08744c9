"""Who holds a lease, as far as the same machine can tell: whether that process is gone.

An owner string reads ``<readable>:<identity>:<token>``. The identity is the fingerprint of
the machine and of its present boot, the process-id namespace, the process id, and the
process's start in clock ticks since the boot (`/proc/<pid>/stat`, field 22).

A process is *provably gone* only for somebody in the same namespace of the same boot whom
the kernel tells that no such process is left, that its id belongs to a later one, or that it
is a zombie: dead, and not yet waited for by its parent. In the machine's own namespace a
process of an earlier boot is gone, too. Everything else proves nothing and costs what it
always did, one time to live:

- an owner string of another writer, or one that carries no identity (macOS, Windows);
- another machine, and a container that cannot see the owner's processes;
- a process that is stopped (SIGSTOP), swapped out, or in the hands of a debugger;
- a ``/proc`` that is not that of the caller's own namespace.

The fingerprint of the machine is made of its id, its name, the addresses of its network
devices, and the time namespace: copies of a virtual machine often share the first, and a time
namespace shifts what is read as the start. Two copies of one *running* machine (a snapshot
that was started twice) look like one, so each takes the other's processes for gone: of the
runs that they share, the fence lets each be changed by its latest owner alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "LONGEST_IDENTITY",
    "ProcessIdentity",
    "is_provably_gone",
    "own_identity",
    "parse_owner",
    "readable_part",
]

_PROC = Path("/proc")
_MACHINE_ID = Path("/etc/machine-id")
_DEVICES = Path("/sys/class/net")
_FINGERPRINT_DIGITS = 12
_MACHINE_NAMESPACE = 0xEFFFFFFC
"""The inode of the process-id namespace that the kernel itself begins with, on every boot."""
_START_FIELD = 22
_STATE_FIELD = 3
_THREADS_FIELD = 20
_DEAD_STATES = frozenset({"Z", "X", "x"})
_FORM = re.compile(
    r"p1\.(?P<machine>[0-9a-f]{12})\.(?P<boot>[0-9a-f]{12})"
    r"\.(?P<namespace>[0-9]{1,10})\.(?P<pid>[1-9][0-9]{0,9})\.(?P<start>[0-9]{1,20})"
)
LONGEST_IDENTITY = 3 + 12 + 1 + 12 + 1 + 10 + 1 + 10 + 1 + 20
"""In code points."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot of one machine.

    ``namespace`` is the inode of its process-id namespace, ``start`` the clock ticks from
    the boot to its beginning.
    """

    machine: str
    boot: str
    namespace: int
    pid: int
    start: int

    def __str__(self) -> str:
        return f"p1.{self.machine}.{self.boot}.{self.namespace}.{self.pid}.{self.start}"


def parse_owner(owner: str, /) -> ProcessIdentity | None:
    """Return the identity that an owner string carries, or None. Raises nothing."""
    runtime = owner.rsplit(":", 2)
    found = _FORM.fullmatch(runtime[1]) if len(runtime) == 3 else None  # noqa: PLR2004 - as its form says
    if found is None:
        return None
    return ProcessIdentity(
        machine=found["machine"],
        boot=found["boot"],
        namespace=int(found["namespace"]),
        pid=int(found["pid"]),
        start=int(found["start"]),
    )


def readable_part(owner: str, /) -> str:
    """Return an owner string as people read it: without an identity and its token."""
    return owner if parse_owner(owner) is None else owner.rsplit(":", 2)[0]


def own_identity() -> ProcessIdentity | None:
    """Return this process's identity, or None where the system does not tell.

    A forked child gets one of its own.
    """
    global _own  # noqa: PLW0603 - one process has one identity
    pid = os.getpid()
    if _own is None or _own[0] != pid:
        _own = (pid, _look_at_self(pid))
    return _own[1]


_own: tuple[int, ProcessIdentity | None] | None = None


def is_provably_gone(owner: str, /) -> bool:
    """Whether the process that an owner string names is dead beyond doubt.

    False for every doubt, and always where the string carries no identity. Raises nothing.
    """
    theirs = parse_owner(owner)
    mine = own_identity() if theirs is not None else None
    if theirs is None or mine is None or theirs.machine != mine.machine:
        return False
    if theirs.boot != mine.boot:
        # Only the machine's own namespace is known to be of this machine and of none other.
        return theirs.namespace == mine.namespace == _MACHINE_NAMESPACE
    return theirs.namespace == mine.namespace and _has_ended(theirs)


def _has_ended(there: ProcessIdentity) -> bool:
    try:
        # Asked first, and not of /proc: that may hide the processes of other users.
        os.kill(there.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is there, and another owner's
    except (OSError, OverflowError):
        return False
    fields = _stat(there.pid)
    if fields is None:
        return False
    if int(fields[_START_FIELD - _STATE_FIELD]) != there.start:
        return True  # the id has gone to a later process
    # A leader that has ended while its threads go on is shown as a zombie as well.
    alone = int(fields[_THREADS_FIELD - _STATE_FIELD]) <= 1
    return fields[0] in _DEAD_STATES and alone


def _stat(pid: int | str) -> list[str] | None:
    """Return the fields of a process's stat from the state on, or None."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("ascii", "replace")
    except OSError:
        return None
    # The command's name stands in parentheses and may hold any character, those too.
    fields = text.rpartition(")")[2].split()
    wanted = fields[1:] if len(fields) > _START_FIELD - _STATE_FIELD else []
    if not wanted or not all(field.lstrip("-").isdigit() for field in wanted):
        return None
    return fields


def _look_at_self(pid: int) -> ProcessIdentity | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        if (_PROC / "self").readlink().name != str(pid):
            return None  # the /proc of another namespace: its ids mean other processes
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except (OSError, ValueError):
        return None
    fields = _stat(pid)
    if fields is None or not boot or not 0 < namespace < 10**10:
        return None
    return ProcessIdentity(
        machine=_machine(boot),
        boot=_fingerprint(boot),
        namespace=namespace,
        pid=pid,
        start=int(fields[_START_FIELD - _STATE_FIELD]),
    )


def _machine(boot: str) -> str:
    try:
        machine_id = _MACHINE_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        machine_id = ""
    # Without an id, nothing that is here says that another boot is of this machine.
    runtime = (
        machine_id or boot,
        socket.gethostname(),
        *_network_devices(),
        _time_namespace(),
    )
    return _fingerprint(*runtime)


def _network_devices() -> list[str]:
    """Return the addresses of what is plugged in, and not of what software has made."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for device in _DEVICES.iterdir():
            if (device / "device").exists():
                with contextlib.suppress(OSError, ValueError):
                    found.append((device / "address").read_text("ascii").strip())
    return sorted(found)


def _time_namespace() -> str:
    try:
        return str((_PROC / "self/ns/time").stat().st_ino)
    except OSError:
        return ""  # a kernel without them


def _fingerprint(*runtime: str) -> str:
    """Return what tells machines apart, and tells nobody a machine's id."""
    text = "\0".join(("rulvar.process-identity", *runtime))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_FINGERPRINT_DIGITS]
