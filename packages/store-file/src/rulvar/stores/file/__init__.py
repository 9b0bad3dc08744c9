"""The file store for Rulvar: this package holds its name, the store is not there yet.

It registers no store: ``open_stores("file:///...")`` is refused as an unknown scheme.
"""
