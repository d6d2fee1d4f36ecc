"""`make demo` does what it says, exits 0 and leaves nothing running."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.control_plane import processes_marked

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, timeout=150, env={"TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "submitted 200 tasks" in done.stdout
    assert "(right)" in done.stdout
    assert "saved at step" in done.stdout
    assert "succeeded, after attempt 2" in done.stdout
    assert "clean: every invariant holds" in done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert processes_marked(str(tmp_path)) == []
