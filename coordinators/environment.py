"""The environment variables that hold credentials: only processes that use them get them."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A test compares this with the settings that are marked as secret.
_SECRET = re.compile(r"TRIDENT_(?:\w*(?:AUTH|PASSWORD|TOKEN)|SPARK_CONF|SPARK__.+)")


def is_secret(variable: str) -> bool:
    """Tells whether the variable is a setting of this framework that holds a credential."""
    return _SECRET.fullmatch(variable) is not None


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy for a child process."""
    return {variable: value for variable, value in environ.items() if not is_secret(variable)}
