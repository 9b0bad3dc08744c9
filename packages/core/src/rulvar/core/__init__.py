"""Rulvar core: the engine, the store contract and the plugin registry."""
