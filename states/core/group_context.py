"""The names that everything of a batch group is found by: its warehouse, topology, group and incarnation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trident.states.core.place import Place


@dataclass(frozen=True)
class GroupContext:
    """A batch group of a topology, in one of the topology's incarnations."""

    warehouse: Place
    topology: str
    group: str
    incarnation: str

    @property
    def folder(self) -> Place:
        """Of the group: manifests, and staged rows of states without a table."""
        return self.warehouse / "_trident" / self.topology / self.group


@dataclass(frozen=True)
class LeaderContext(GroupContext):
    """A batch group under the lease of its leader.

    Attributes:
        epoch: of the lease; written into every control record.
        check_fence: raises Deposed when another coordinator leads.
    """

    epoch: int
    check_fence: Callable[[], None]
