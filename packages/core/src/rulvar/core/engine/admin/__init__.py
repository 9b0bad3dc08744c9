"""What is done to a run from outside: answers, cancellation, retries, deletion, sweeps."""
