"""Certification: `runner` tries the clauses, `certificate` is what is found, `report` prints it.

`options` is what the command line, ``python -m rulvar.conformance`` and the pytest plugin share;
`attribution` says whose fault an unexpected error is.
"""
