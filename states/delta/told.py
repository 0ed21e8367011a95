"""The facts about a transaction that only the process which ran it knows, as its manifest has them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from trident.coordinators.ports import AttemptStory, FailedAttempt

_CHARS = 500


@dataclass(frozen=True)
class Told:
    """Written before the decision, with the manifest; times are seconds since the epoch.

    Attributes:
        epoch: of the coordinator.
        code_id: tells the code that processed it; empty: not known.
        begun_at: when the attempt began; None: not known.
        prepared_at: when all was ready to be decided.
        failures: of earlier attempts, as far as this coordinator saw them.
        skipped: the error of a transaction that a person had skipped; None: it was not.
    """

    epoch: int
    code_id: str
    begun_at: float | None
    prepared_at: float
    failures: tuple[FailedAttempt, ...] = ()
    skipped: str | None = None

    @classmethod
    def now(cls, epoch: int, code_id: str, story: AttemptStory | None, skipped: str | None) -> Told:
        """Of an attempt that is ready to be decided."""
        failures = tuple(replace(one, error=_storable(one.error)) for one in story.failures) if story else ()
        begun_at = story.begun_at if story else None
        said = None if skipped is None else _storable(skipped)
        return cls(epoch, code_id, begun_at, time.time(), failures, said)


def _storable(error: str) -> str:
    """A user's error may have any text: half of a surrogate pair would make the manifest unreadable."""
    return error[:_CHARS].encode("utf-8", "replace").decode("utf-8")
