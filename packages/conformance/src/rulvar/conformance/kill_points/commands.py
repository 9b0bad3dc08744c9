"""The command `kill-points`, for installations from before it moved."""

from rulvar.conformance.crash.cli import kill_points_command

__all__ = ["kill_points_command"]
