"""Imports the clients of servers, which are installed by extras."""

from __future__ import annotations

import importlib
from typing import Any

from trident.coordinators.errors import EnvironmentProblem


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
