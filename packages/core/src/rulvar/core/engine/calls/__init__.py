"""What a workflow function can ask for: the context and the durable operations behind it."""
