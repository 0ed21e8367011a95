"""Runs Python in a process of its own, with this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python(
    *arguments: object, cwd: Path = ROOT, timeout_secs: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The process once it has ended; variables are added to those of this process."""
    command = [sys.executable, *map(str, arguments)]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, timeout=timeout_secs)
