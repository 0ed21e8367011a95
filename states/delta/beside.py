"""The state kinds of the tables beside a group's states: dead letters, and the messages that were settled."""

from __future__ import annotations

from typing import ClassVar

from trident.states.delta.append import RowsKind


class BesideKind(RowsKind):
    """A table that only the framework makes, and whose rows outlive a state.

    Attributes:
        pattern: the name of its tables.
        named_after: what "{part}" in the pattern is a name of.
    """

    only_with_rows = True
    pattern: ClassVar[str]
    named_after: ClassVar[str]

    def table_name(self, topology: str, part: str) -> str:
        return self.pattern.format(topology=topology, part=part)


class DeadLetterKind(BesideKind):
    """The table of what a batch group gave up."""

    name = "dead_letters"
    pattern = "{topology}__{part}__dead_letters"
    named_after = "batch group"


class MessageKind(BesideKind):
    """The table of how a stream's messages ended."""

    name = "messages"
    pattern = "{topology}__{part}__messages"
    named_after = "stream"


class ViewKind(BesideKind):
    """The table of a batch group's views. It is written beside transactions, and is no part of any."""

    name = "views"
    pattern = "{topology}__{part}__views"
    named_after = "batch group"


DEAD_LETTERS = DeadLetterKind()
MESSAGES = MessageKind()
VIEWS = ViewKind()
SIDE_TABLES: tuple[BesideKind, ...] = (DEAD_LETTERS, MESSAGES)
