"""The command line of rulvar: `rulvar run`, `rulvar worker`, `rulvar runs show` and more.

Reading order: `main` (the lazy group and the exit statuses), `config` (where the store and
the workflows come from), `render` (all output), then a command in `commands`. Only
`rulvar.core` is imported; stores are found by entry point.
"""

from __future__ import annotations

__all__ = ["main"]

from rulvar.cli.main import main
