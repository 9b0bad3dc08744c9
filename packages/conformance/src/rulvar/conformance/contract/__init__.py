"""What is asked of a store: levels, clauses, and a check for each.

`levels` are what a store can claim, `clauses` says what a clause is, `registry` lists them, and
`claims` reads what a store declares.
"""
