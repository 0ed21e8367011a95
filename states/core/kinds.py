"""Finds the kind of a state: by the object that the user gives, or by the name in stored files."""

from __future__ import annotations

import functools
import importlib

from trident.coordinators.errors import Halted, TopologyError
from trident.states.core.binding import StateKind

# A user's state is recognised in this order. The modules are loaded when a kind is first asked for: workers and
# `trident status` read stored files without them.
_HOMES = (
    "delta.append.APPEND",
    "keyed.delta_map.KEYED",
    "maps.memory_map.MEMORY",
    "maps.backed_map.MAP",
    "maps.backed_map.USER",
    "delta.append.DEAD_LETTERS",
    "delta.append.MESSAGES",
    "outside.port.OUTSIDE",
)


@functools.cache
def _known() -> dict[str, StateKind]:
    homes = (home.rsplit(".", 1) for home in _HOMES)
    kinds: list[StateKind] = [
        getattr(importlib.import_module(f"trident.states.{where}"), name) for where, name in homes
    ]
    return {kind.name: kind for kind in kinds}


def all_kinds() -> list[StateKind]:
    """In the order in which a user's state is recognised."""
    return list(_known().values())


def find_kind(name: str) -> StateKind | None:
    return _known().get(name)


def stored_kind(name: str, state: str) -> StateKind:
    """The kind that a stored file names."""
    found = _known().get(name)
    if found is None:
        raise Halted(
            f"state {state!r} is of a kind that this version of the framework does not know",
            found=repr(name),
            expected=f"one of {', '.join(_known())}",
            action="start the version that wrote it: a later one, or one with a kind of its own",
        )
    return found


def kind_of_state(state: object) -> StateKind:
    """The kind of a user's state."""
    a_class = isinstance(state, type)
    for kind in () if a_class else _known().values():
        if kind.holds(state):
            return kind
    raise TopologyError(
        "this is not a state",
        found=f"{state.__name__}, the class" if isinstance(state, type) else repr(state),
        expected=f"{', '.join(kind.example for kind in _known().values() if kind.example)}"
        f"{' (an instance)' if a_class else ''}",
    )
