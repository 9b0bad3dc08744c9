"""One module for each command or group of commands; imported when it is called."""
