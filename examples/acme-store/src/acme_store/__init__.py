"""A small fenced store for Rulvar: journals, rows, leases and blobs in one SQLite file."""
