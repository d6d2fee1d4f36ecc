"""A log that cannot be written stops nobody."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
import structlog

from corral.observe import configure_logging


def test_a_closed_stderr_is_survived_and_a_new_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, fresh = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", fresh)
    configure_logging()
    log = structlog.get_logger("test")
    monkeypatch.setattr(sys, "stderr", closed)
    log.error("nobody hears")
    monkeypatch.setattr(sys, "stderr", fresh)
    log.error("somebody does")
    assert "somebody does" in fresh.getvalue() and "nobody" not in fresh.getvalue()


def test_a_reader_that_is_gone_is_survived() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = (
        "import structlog; from corral.observe import configure_logging; configure_logging();"
        "log = structlog.get_logger(); [log.error('x' * 9000) for _ in range(9)]; print('alive', flush=True)"
    )
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=writer, timeout=30)
    os.close(writer)
    assert ran.stdout == b"alive\n"
