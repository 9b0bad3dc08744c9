"""The soak: real processes storm one store, and a referee judges what they did to it.

Reading order: `history` (what is recorded of every attempt, in a form that survives SIGKILL),
`referee` (the one serial history that the epochs promise, held against what was seen).
"""
