"""A store for Rulvar that is written outside its repository."""
