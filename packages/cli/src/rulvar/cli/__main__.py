"""`python -m rulvar.cli` is `rulvar`."""

from __future__ import annotations

from rulvar.cli.main import main

if __name__ == "__main__":
    main()
