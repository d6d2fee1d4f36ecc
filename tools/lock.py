"""Write the lock files: what Corral needs to run, and what its checks and tests need on top of that.

Makes a throw-away virtual environment per file, installs what pyproject.toml asks for, and writes down the exact
versions that came. Never writes where they came from: the lock files work with whatever index pip is told to use.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD_TOOLS = ("hatchling", "editables")
NEVER_PINNED = ("pip", "setuptools", "corral")
HEADER = "# Exact versions, written by `make lock`. {what}\n"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime: list[str] = project["project"]["dependencies"]
    development: list[str] = project["dependency-groups"]["dev"]
    build = [line for line in development if line.startswith(BUILD_TOOLS)]

    runtime_pins = pins_of([*runtime, *build], constraints=[])
    write("requirements.lock", "To build and run Corral.", runtime_pins)
    all_pins = pins_of([*runtime, *development], constraints=runtime_pins)
    write(
        "requirements-dev.lock",
        "To check and test Corral, on top of requirements.lock.",
        sorted(set(all_pins) - set(runtime_pins)),
    )


def pins_of(requirements: list[str], constraints: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        python = str(Path(folder, "venv", "bin", "python"))
        constraint_file = Path(folder, "constraints.txt")
        constraint_file.write_text("\n".join(constraints))
        subprocess.run([sys.executable, "-m", "venv", str(Path(folder, "venv"))], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", str(constraint_file), *requirements], check=True)
        frozen = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    lines = [line for line in frozen.splitlines() if "==" in line and line.split("==")[0].lower() not in NEVER_PINNED]
    return sorted(lines, key=str.lower)


def write(name: str, what: str, pins: list[str]) -> None:
    (ROOT / name).write_text(HEADER.format(what=what) + "\n".join(sorted(pins, key=str.lower)) + "\n")


if __name__ == "__main__":
    main()
