"""`python -m corral` is `corral`."""

from __future__ import annotations

from corral.cli.main import run

if __name__ == "__main__":
    run()
