"""Named points at which tests make the driver's I/O fail (DESIGN 3; issue: fault points).

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
hang            the I/O is not done; the thread waits until :func:`disarm`
slow            the I/O is done, after :data:`SLOW_SECS`; so is every later one
==============  ==========================================================

``nth`` counts the entries of that point from 1, the default, since it was
armed. A fault fires once, except ``slow``. With nothing armed a point costs one truth test.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import TracebackType
from typing import ContextManager

from coordinators.errors import ConfigError, TridentError

ENVIRONMENT_VARIABLE = "TRIDENT_FAULTS"
OUTCOMES = ("fail_before", "do_then_fail", "do_then_die", "hang", "slow")
SLOW_SECS = 2.0


class InjectedFault(TridentError):
    """What a fault point raises; an ordinary failure of that piece of I/O.

    Whether the I/O was done is as unknown to the code under test as it would
    be after a lost answer.

    Attributes:
        point: the fault point's name.
    """

    def __init__(self, point: str, outcome: str) -> None:
        super().__init__(f"injected fault {outcome} at {point}")
        self.point = point


class _Fault:
    def __init__(self, point: str, outcome: str, nth: int) -> None:
        self.point, self.outcome, self.nth = point, outcome, nth
        self.entries = 0
        self.fired = False
        self.released = threading.Event()


_registered: dict[str, str] = {}
_armed: dict[str, list[_Fault]] = {}
_lock = threading.Lock()
_OFF: ContextManager[None] = contextlib.nullcontext()


def register(name: str, doc: str) -> str:
    """Declare a fault point; called once, when its module is imported.

    Args:
        name: dotted, "zk.decide".
        doc: the I/O that it encloses.

    Returns:
        The name, so that a module can keep it as a constant.
    """
    known = _registered.setdefault(name, doc)
    if known != doc:
        raise ConfigError(f"fault point {name} is declared twice", found=doc, expected=known)
    return name


def registered() -> dict[str, str]:
    """Every declared point of the modules imported so far, with its meaning."""
    return dict(_registered)


def arm(faults: str) -> None:
    """Arm faults, in addition to those armed already.

    A point that no imported module has declared is accepted, since its module
    may be imported later; :func:`unfired` shows a fault that never happened.

    Raises:
        ConfigError: the text is not ``point:outcome[:nth],…``.
    """
    parsed = [_parse(entry.strip()) for entry in faults.split(",") if entry.strip()]
    with _lock:
        for fault in parsed:
            _armed.setdefault(fault.point, []).append(fault)


def disarm() -> None:
    """Forget every fault and let hanging threads go on (they raise)."""
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


def fault_point(name: str) -> ContextManager[None]:
    """The context in which the I/O of one point is done."""
    if not _armed:
        return _OFF
    return _enter(name)


def _enter(name: str) -> ContextManager[None]:
    due = None
    with _lock:
        for fault in _armed.get(name, ()):
            fault.entries += 1
            if fault.entries == fault.nth or (fault.outcome == "slow" and fault.entries > fault.nth and due is None):
                due = fault
    return _OFF if due is None else _Firing(due)


class _Firing:
    def __init__(self, fault: _Fault) -> None:
        self._fault = fault

    def __enter__(self) -> None:
        fault = self._fault
        if fault.outcome == "hang":
            fault.fired = True
            fault.released.wait()
            raise InjectedFault(fault.point, fault.outcome)
        if fault.outcome == "slow":
            fault.fired = True
            fault.released.wait(SLOW_SECS)
        if fault.outcome == "fail_before":
            fault.fired = True
            raise InjectedFault(fault.point, fault.outcome)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # The I/O failed by itself: "do, then…" did not come about, and
            # the real error must not be hidden behind an injected one.
            return
        self._fault.fired = True
        if self._fault.outcome == "slow":
            return
        if self._fault.outcome == "do_then_die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise InjectedFault(self._fault.point, self._fault.outcome)


def _parse(entry: str) -> _Fault:
    point, _, rest = entry.partition(":")
    outcome, _, nth = rest.partition(":")
    if not point or outcome not in OUTCOMES or not (nth == "" or (nth.isdecimal() and int(nth) >= 1)):
        raise ConfigError(
            f"{ENVIRONMENT_VARIABLE} cannot be read",
            found=repr(entry),
            expected=f"point:outcome[:nth] with an outcome of {', '.join(OUTCOMES)} and nth from 1",
        )
    return _Fault(point, outcome, int(nth or 1))


arm(os.environ.get(ENVIRONMENT_VARIABLE, ""))
