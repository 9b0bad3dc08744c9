"""``python -m rulvar.conformance.protocol``."""

from __future__ import annotations

import sys

from rulvar.conformance.protocol.cli import main

if __name__ == "__main__":
    sys.exit(main())
