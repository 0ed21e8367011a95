"""The error that says that a local copy cannot be used; without LMDB, which hosts of a cluster may not have."""

from __future__ import annotations

from trident.coordinators.errors import TridentError


class StaleCopy(TridentError):
    """The copy is not, or cannot be shown to be, as of the transaction that was asked for: read the tables."""
