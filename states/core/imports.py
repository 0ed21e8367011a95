"""Imports: of clients that extras install, and the search path of the framework's own processes."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow as pa

from trident.coordinators.errors import EnvironmentProblem

# Imports the clients of servers, which are installed by extras.


def client_module(name: str, user: str, client: str, package: str, extra: str) -> Any:
    """The client package of a server, or a module of it.

    Args:
        user: who needs it, for the message: "a RedisMap".
        client: its name in words: "the Redis client".
        package: as pip takes it.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise EnvironmentProblem(
            f"{user} needs {client}",
            found=str(problem),
            action=f"install it: pip install {package} (the extra `{extra}`)",
        ) from problem


# Where a process of the framework's own finds modules: not in its working folder, and in the user's folders last.


def import_path() -> list[str]:
    """The ``sys.path`` of such a process: as this process's, but the user's folders behind all that it needs.

    Start it with ``python -c``, so that no module of the user's is imported before.
    """
    own = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    own += [os.path.join(folder, "lib-dynload") for folder in own]
    framework, libraries = str(Path(__file__).parents[3]), str(Path(pa.__file__).parents[1])
    # A zip file was sent to this host by the driver: that version, and not one that is installed here.
    own += [framework, libraries] if os.path.isfile(framework) else [libraries, framework]
    return list(dict.fromkeys([*own, *(folder for folder in sys.path if os.path.isabs(folder))]))
