"""The base of queries of Trident and tuple topologies: names, listeners, the end and its error."""

from __future__ import annotations

import threading
from typing import TypeVar

from trident.streams.other_names import QUERY_NAMES, OtherNames
from trident.streams.shown import Facts, as_html, as_line
from trident.watching.listeners import Listeners, TopologyListener

# How long a thread that has ended is waited for.
_JOIN_SECS = 5.0
_Query = TypeVar("_Query", bound="QueryBase")


class QueryBase(OtherNames):
    """A topology that runs in this process; a subclass says how it stops and what there is to show.

    Args:
        listeners: those of the query.
        ended: set when it has ended.
    """

    _OTHER_NAMES = QUERY_NAMES
    _thread: threading.Thread

    def __init__(self, name: str, run_id: str, listeners: Listeners, ended: threading.Event) -> None:
        self._name, self._run_id, self._listeners, self._has_ended = name, run_id, listeners, ended

    def _facts(self) -> Facts:
        raise NotImplementedError

    def _end_error(self) -> BaseException | None:
        """Why it ends; None where nothing failed."""
        raise NotImplementedError

    def __enter__(self: _Query) -> _Query:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A user who interrupts does not wait for a MERGE.
        self.request_stop(compact=kind is None or issubclass(kind, Exception))
        self.stop()
        if kind is None:
            self._raise_error()

    def __repr__(self) -> str:
        return as_line(type(self).__name__, self._name, self._facts())

    def _repr_html_(self) -> str:
        return as_html(type(self).__name__, self._name, self._facts())

    @property
    def name(self) -> str:
        """The topology's name."""
        return self._name

    @property
    def run_id(self) -> str:
        """Unique to this start."""
        return self._run_id

    @property
    def is_active(self) -> bool:
        """Tells whether it has not ended; a standby that waits is active too."""
        return not self._has_ended.is_set()

    def exception(self) -> BaseException | None:
        """Why it ended; None while it runs or when it was stopped."""
        return self._end_error() if self._has_ended.is_set() else None

    def await_termination(self, timeout_secs: float | None = None) -> bool:
        """Blocks until it ends; False when timeout_secs went by first.

        Raises:
            TridentError: it ended with this error.
        """
        if not self._has_ended.wait(timeout_secs):
            return False
        self._thread.join(_JOIN_SECS)  # not for ever: it may be in a call that does not return
        self._raise_error()
        return True

    def stop(self, timeout_secs: float | None = None) -> None:
        raise NotImplementedError

    def request_stop(self, compact: bool = True) -> None:
        raise NotImplementedError

    def add_listener(self, listener: TopologyListener) -> None:
        """Tells it every event from here on; once, where it is there already. Not ``on_started``, which was before.

        Raises:
            ConfigError: it is no :class:`trident.TopologyListener`.
        """
        self._listeners.add(listener)

    def remove_listener(self, listener: TopologyListener) -> None:
        """Tells it nothing more, not what waits for it either; one that is not there is no error."""
        self._listeners.remove(listener)

    @property
    def dropped_events(self) -> int:
        """Events that listeners were too slow for; see :class:`trident.TopologyListener`."""
        return self._listeners.dropped()

    def _raise_error(self) -> None:
        error = self._end_error()
        if error is not None:
            raise error
