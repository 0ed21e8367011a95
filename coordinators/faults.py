"""Named points at which tests make the driver's I/O fail (docs/semantics.md 10).

A module declares its points when it is imported and puts each piece of I/O
inside one::

    ADVANCE = faults.register("zk.advance", "the multi that moves the current txid on")

    with faults.fault_point(ADVANCE):
        zk.multi(ops)

A fault is armed by the environment variable ``TRIDENT_FAULTS`` or by
:func:`arm`, both as ``point:outcome[:nth]``, several separated by commas:

==============  ==========================================================
fail_before     the I/O is not done; :class:`InjectedFault` is raised
do_then_fail    the I/O is done; then :class:`InjectedFault` is raised
do_then_die     the I/O is done; then this process SIGKILLs itself
do_then_hang    the I/O is done; the thread waits until :func:`disarm`:
                what a process that has died leaves, within one that goes on
stop            this process SIGSTOPs itself; when it is continued the I/O
                is done: a zombie that attempts precisely this write
do_then_stop    the I/O is done; then this process SIGSTOPs itself
hang            the I/O is not done; the thread waits until :func:`disarm`
                and then fails
pause           the thread waits until :func:`disarm` and then does the I/O:
                a process that was stopped and goes on
slow            the I/O is done, after :data:`SLOW_SECS`; so is every later one
reach           the I/O is done as ever: the beginning of a chain, below
==============  ==========================================================

``nth`` counts the entries of that point from 1, the default, since it was
armed. A fault fires once, except ``slow``. ``a:hang>b:fail_before`` is a chain: the entries of
``b`` count only once ``a`` has fired. With nothing armed a point costs one
truth test.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from contextlib import AbstractContextManager
from types import TracebackType

from trident.coordinators.errors import ConfigError, TridentError

log = logging.getLogger("trident.coordinators.faults")
ENVIRONMENT_VARIABLE = "TRIDENT_FAULTS"
OUTCOMES = (
    "fail_before",
    "do_then_fail",
    "do_then_die",
    "do_then_hang",
    "do_then_stop",
    "hang",
    "pause",
    "reach",
    "slow",
    "stop",
)
SLOW_SECS = 2.0


class InjectedFault(TridentError):
    """A fault point raises it: an ordinary failure of that piece of I/O.

    The code under test knows as little as after a lost answer whether the I/O
    was done.
    """

    def __init__(self, point: str, outcome: str) -> None:
        super().__init__(f"injected fault {outcome} at {point}")
        self.point = point


class _Fault:
    def __init__(self, point: str, outcome: str, nth: int, after: _Fault | None) -> None:
        self.point, self.outcome, self.nth, self.after = point, outcome, nth, after
        self.entries = 0
        self.fired = False
        self.released = threading.Event()

    def counts_now(self) -> bool:
        return self.after is None or self.after.fired


_registered: dict[str, str] = {}
_armed: dict[str, list[_Fault]] = {}
_lock = threading.Lock()
_OFF: AbstractContextManager[None] = contextlib.nullcontext()


def register(name: str, doc: str) -> str:
    """Declare a fault point; called once, when its module is imported."""
    known = _registered.setdefault(name, doc)
    if known != doc:
        raise ConfigError(f"fault point {name} is declared twice", found=doc, expected=known)
    return name


def registered() -> dict[str, str]:
    """Every declared point of the modules imported so far, with its meaning."""
    return dict(_registered)


def arm(faults: str) -> None:
    """Arm faults, in addition to those armed already: ``a:hang:2,b:fail_before>c:hang``.

    A point that no imported module has declared is accepted, since its module
    may be imported later; :func:`unfired` shows a fault that never happened.

    Raises:
        ConfigError: the text is not ``point:outcome[:nth][>…],…``.
    """
    parsed = [fault for chain in faults.split(",") if chain.strip() for fault in _parse_chain(chain)]
    with _lock:
        for fault in parsed:
            _armed.setdefault(fault.point, []).append(fault)


def disarm() -> None:
    """Forget every fault and let the threads that wait go on."""
    with _lock:
        faults = [fault for of_point in _armed.values() for fault in of_point]
        _armed.clear()
    for fault in faults:
        fault.released.set()


def unfired() -> list[str]:
    """Armed faults that have not happened: a test that used them proved nothing."""
    with _lock:
        return [
            f"{fault.point}:{fault.outcome}:{fault.nth}"
            for of_point in _armed.values()
            for fault in of_point
            if not fault.fired
        ]


def fault_point(name: str) -> AbstractContextManager[None]:
    """The context in which the I/O of one point is done."""
    if not _armed:
        return _OFF
    return _enter(name)


def _enter(name: str) -> AbstractContextManager[None]:
    due = None
    with _lock:
        for fault in _armed.get(name, ()):
            if not fault.counts_now():
                continue
            fault.entries += 1
            if fault.entries == fault.nth or (fault.outcome == "slow" and fault.entries > fault.nth and due is None):
                due = fault
    return _OFF if due is None else _Firing(due)


class _Firing:
    def __init__(self, fault: _Fault) -> None:
        self._fault = fault

    def __enter__(self) -> None:
        fault = self._fault
        if fault.outcome in ("hang", "pause"):
            fault.fired = True
            fault.released.wait()
            if fault.outcome == "hang":
                raise InjectedFault(fault.point, fault.outcome)
        if fault.outcome == "slow":
            fault.fired = True
            fault.released.wait(SLOW_SECS)
        if fault.outcome == "reach":
            fault.fired = True
        if fault.outcome == "fail_before":
            fault.fired = True
            raise InjectedFault(fault.point, fault.outcome)
        if fault.outcome == "stop":
            fault.fired = True
            _stop_here(fault.point)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._fault.outcome in ("stop", "reach"):
            # The I/O failed by itself: "do, then…" did not come about, and
            # the real error must not be hidden behind an injected one. The
            # fault waits for the next entry.
            with _lock:
                self._fault.entries -= not self._fault.fired
            return
        if self._fault.outcome == "pause":
            return
        self._fault.fired = True
        if self._fault.outcome == "slow":
            return
        if self._fault.outcome == "do_then_die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault.outcome == "do_then_hang":
            self._fault.released.wait()
        if self._fault.outcome == "do_then_stop":
            _stop_here(self._fault.point)
            return
        raise InjectedFault(self._fault.point, self._fault.outcome)


def _stop_here(point: str) -> None:
    log.warning("stopping at %s", point)
    # To this thread: a signal to the process may be taken by another thread, while this one does the I/O.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _parse_chain(chain: str) -> list[_Fault]:
    found: list[_Fault] = []
    for entry in chain.split(">"):
        found.append(_parse(entry.strip(), found[-1] if found else None))
    return found


def _parse(entry: str, after: _Fault | None) -> _Fault:
    point, _, rest = entry.partition(":")
    outcome, _, nth = rest.partition(":")
    if not point or outcome not in OUTCOMES or not (nth == "" or (nth.isdecimal() and int(nth) >= 1)):
        raise ConfigError(
            f"{ENVIRONMENT_VARIABLE} cannot be read",
            found=repr(entry),
            expected=f"point:outcome[:nth] with an outcome of {', '.join(OUTCOMES)} and nth from 1",
        )
    return _Fault(point, outcome, int(nth or 1), after)


arm(os.environ.get(ENVIRONMENT_VARIABLE, ""))
