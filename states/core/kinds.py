"""The kinds of states that there are, by the names that stored files have for them."""

from __future__ import annotations

from trident.coordinators.errors import Halted, TopologyError
from trident.states.core.binding import StateKind

_kinds: dict[str, StateKind] = {}


def register(*kinds: StateKind) -> None:
    """Makes kinds known; ``trident/states/__init__.py`` does it before anything else of states is loaded."""
    _kinds.update({kind.name: kind for kind in kinds})


def all_kinds() -> list[StateKind]:
    """In the order of their registration."""
    return list(_kinds.values())


def find_kind(name: str) -> StateKind | None:
    """The kind of a name; None when there is none."""
    return _kinds.get(name)


def stored_kind(name: str, state: str) -> StateKind:
    """The kind that a stored file names.

    Raises:
        Halted: this version of the framework does not know it.
    """
    found = _kinds.get(name)
    if found is None:
        raise Halted(
            f"state {state!r} is of a kind that this version of the framework does not know",
            found=repr(name),
            expected=f"one of {', '.join(_kinds)}",
            action="start the version that wrote it: a later one, or one with a kind of its own",
        )
    return found


def kind_of_state(state: object) -> StateKind:
    """The kind of a user's state.

    Raises:
        TopologyError: it is no state.
    """
    a_class = isinstance(state, type)
    for kind in () if a_class else _kinds.values():
        if kind.holds(state):
            return kind
    raise TopologyError(
        "this is not a state",
        found=f"{state.__name__}, the class" if isinstance(state, type) else repr(state),
        expected=f"{', '.join(kind.example for kind in _kinds.values() if kind.example)}"
        f"{' (an instance)' if a_class else ''}",
    )
