"""The error of a local copy that cannot be used; without imports, which hosts of a cluster may not have."""

from __future__ import annotations

from trident.coordinators.errors import TridentError


class StaleCopy(TridentError):
    """The copy is not, or cannot be shown to be, as of the transaction that was asked for: read the tables."""
