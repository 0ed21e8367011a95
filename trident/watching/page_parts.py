"""Parts of the live page's answers: what is found again only every few moments, keys as texts, values as JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import InvalidOperation
from typing import Any, Generic, TypeVar

from pyspark.sql.types import StructField
from starlette.exceptions import HTTPException

from trident.coordinators.errors import WrongArguments
from trident.drpc.values import converted

_WAIT_SECS = 1.0
# A look that takes long is not made again at once: at most so large a share of the time goes to it, up to a bound.
_SHARE, _RARE_SECS = 0.1, 60.0
Found = TypeVar("Found")


class Recent(Generic[Found]):
    """The answer that was found a moment ago, or is found now.

    One request looks, and may hang where the disk does; the others are told so, and keep no thread.

    Args:
        find: looks for it.
        secs: how long it counts as found a moment ago. A look that took long counts longer: ten times its time, up to
            ``rare_secs``.
        rare_secs: a minute, where nothing else is said.
    """

    def __init__(
        self,
        find: Callable[[], Found],
        secs: float,
        clock: Callable[[], float] = time.monotonic,
        rare_secs: float = _RARE_SECS,
    ) -> None:
        self._find, self._secs, self._clock, self._rare_secs = find, secs, clock, rare_secs
        self._lock = threading.Lock()
        self._found: tuple[float, Found] | None = None  # until when it counts
        self._forgotten = 0  # how often

    def __call__(self) -> Found:
        """Gives it.

        Raises:
            HTTPException: 503, an earlier request still looks for it.
        """
        if not self._lock.acquire(timeout=_WAIT_SECS):
            raise HTTPException(503, "the answer to an earlier request is still being looked for; ask again")
        try:
            known = self._found
            if known is None or self._clock() >= known[0]:
                began, forgotten = self._clock(), self._forgotten
                found, ended = self._find(), self._clock()
                rests = min((ended - began) / _SHARE, self._rare_secs)
                # An answer that is forgotten while it is looked for may have been found before the change.
                until = max(began + self._secs, ended + rests) if forgotten == self._forgotten else ended
                known = self._found = until, found
            return known[1]
        finally:
            self._lock.release()

    def forget(self) -> None:
        """The next one who asks has it looked for again, also where a look is under way."""
        self._forgotten += 1
        self._found = None


def key_of_texts(state: str, fields: Sequence[StructField], texts: Sequence[str]) -> tuple[Any, ...]:
    """A key from what a person has typed, one text for each of its columns.

    Raises:
        WrongArguments: there are more or fewer, or one is not of its column's type.
    """
    if len(texts) != len(fields):
        raise WrongArguments(
            f"this is no key of state {state}",
            found=f"{len(texts)} values",
            expected=", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields) or "none",
        )
    return tuple(_value(state, field, text) for field, text in zip(fields, texts, strict=True))


def _value(state: str, field: StructField, text: str) -> Any:
    try:
        return converted(text, field.dataType)
    except (ValueError, TypeError, KeyError, OverflowError, OSError, InvalidOperation):
        raise WrongArguments(
            f"this is no value of key {field.name} of state {state}",
            found=repr(text)[:100],
            expected=field.dataType.simpleString(),
        ) from None


def shown_value(value: Any) -> Any:
    """A value for a page: numbers, text, lists and objects as JSON has them; all else as text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        # A page counts in doubles: a larger number would be shown as another.
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {_as_name(name): shown_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_value(one) for one in value]
    return str(value)


def _as_name(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(shown_value(key))
