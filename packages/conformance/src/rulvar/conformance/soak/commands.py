"""The command `soak`, for installations from before it moved."""

from rulvar.conformance.soak.cli import soak_command

__all__ = ["soak_command"]
