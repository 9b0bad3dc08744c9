"""Ways to the store and to observers: threads, reads, mutations, events."""
