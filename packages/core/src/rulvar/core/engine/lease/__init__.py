"""Ownership of a run: its lease, the renewal, and the one writer that writes under it."""
