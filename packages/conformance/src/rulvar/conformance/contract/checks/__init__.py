"""The checks, one module for each family of clauses; `contract.registry` lists them."""
