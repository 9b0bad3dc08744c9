"""What a journal means to the code that replays it: no I/O, no clock, no event loop."""
