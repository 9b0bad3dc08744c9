"""One execution of a run in this process, from its begin to its end: scopes, scheduling, deaths."""
