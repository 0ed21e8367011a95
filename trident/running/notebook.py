"""Tells whether this is a notebook: then a cell is started again, and replaces what it started before."""

from __future__ import annotations

import sys
from typing import Any


def in_notebook() -> bool:
    """Tells whether the code runs in a kernel of IPython, as notebooks do; not in a script, nor at a prompt."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
