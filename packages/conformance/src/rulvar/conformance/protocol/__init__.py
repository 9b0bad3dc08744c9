"""The protocol itself: a small model of the fence, explored without a gap.

The model knows a few owners, one or two runs and a clock, and nothing of Python, SQLite or
threads. Read `state` (what there is), `rules` (what each call does to it: contract.md#the-fence
in the simplest code), `guards` (every single check of it, and what is left when it is taken
away), `invariants` (what must hold whatever happens), `actions` (who may do what next), `explore`
(breadth first, with the shortest interleaving to a broken invariant), `replay` (the same
interleavings against a real store), `run_all` (all of it together) and `cli`.

``python -m rulvar.conformance.protocol`` runs it. The model needs nothing but the standard library.
"""
