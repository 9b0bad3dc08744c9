"""The SQLite store for Rulvar."""
