"""The application's code: its definitions and versions, and how it is called."""
