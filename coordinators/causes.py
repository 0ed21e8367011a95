"""The chain of causes behind an exception: the one walk over it, and a search through its texts."""

from __future__ import annotations

import re
from collections.abc import Iterator


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what caused it, the outermost first, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def text_of(error: BaseException) -> str:
    """Returns what an exception says; "" where that cannot be known."""
    try:
        return str(error)
    except Exception:  # str() of a Java error asks the JVM, which may be gone
        return ""


def search_causes(error: BaseException, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The first match in the texts of an exception and of what caused it."""
    return next((match for one in causes(error) if (match := pattern.search(text_of(one)))), None)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, its type where it says nothing; for a log or another error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]
