"""The checks, one module for each family of clauses; `rulvar.conformance.registry` lists them."""
