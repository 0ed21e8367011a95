"""A virtual environment that has this one's libraries, and not this checkout: cheap, offline, for tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def bare_environment(folder: Path) -> Path:
    """Makes the environment; its Python. The framework is not in it.

    A line of a .pth file is a folder that is searched; the .pth files in that folder, one of which leads to this
    checkout, are not read.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    libraries = site_packages(folder)
    (libraries / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Where packages of the environment are."""
    return next((environment / "lib").glob("python*")) / "site-packages"
