"""The command `certify`, for installations from before it moved."""

from rulvar.conformance.certification.cli import certify

__all__ = ["certify"]
