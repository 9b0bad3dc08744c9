"""The checks, one module for each family of clauses; `rulvar.conformance.catalogue` lists them."""
