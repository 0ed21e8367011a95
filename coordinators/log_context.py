"""The transaction that a thread works on, for the records that it logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from trident.coordinators.transactions import TransactionAttempt

_NONE: Mapping[str, Any] = {}
_facts: ContextVar[Mapping[str, Any]] = ContextVar("trident_log_facts", default=_NONE)


def facts() -> Mapping[str, Any]:
    """Of the calling thread's work ``topology``, ``group``, ``txid`` and ``attempt``, as far as they are known."""
    return _facts.get()


def working_on(function: Callable[..., Any], **known: Any) -> Callable[..., Any]:
    """The function with facts that the records have which are logged meanwhile by its thread."""

    def call(*args: Any, **named: Any) -> Any:
        before = _facts.set({**_facts.get(), **known})
        try:
            return function(*args, **named)
        finally:
            _facts.reset(before)

    return call


def facts_of(attempt: TransactionAttempt) -> dict[str, int]:
    """The facts that say which attempt it is."""
    return {"txid": attempt.txid, "attempt": attempt.attempt_id}
