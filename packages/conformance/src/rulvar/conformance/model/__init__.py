"""Everything at once: random operations on a store and on the reference store, compared.

Read `compare` (how one operation is made on both and its answers are compared), then `machine`
(the operations). Needs Hypothesis; nothing else in the kit imports this package.
"""
