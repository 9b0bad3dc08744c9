"""What checks and storms work with: a store under test, callers, processes, stopped calls.

`store_under_test` opens a store at places that nobody else uses. `check_context` and `actors` are
what a check makes calls with, and write the timeline. `children` starts other processes and
`forked_child` forks one; `stepping`, `interleave`, `interrupts` and `races` bring calls together.
"""
