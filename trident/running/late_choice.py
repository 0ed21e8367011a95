"""Chooses the form in which a batch's late part runs, from plain data: no Spark here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# More rows than this are worth a Spark job, whose Python runs beside the coordinator's threads (docs/decisions/0031).
DRIVER_ROWS_MAX = 10_000
# Rows in so few bytes are worth one Spark partition.
SMALL_BYTES = 8 << 20
# So many transactions at most read the tables before another form is tried again.
_PAUSE_MAX = 10


class Form(Enum):
    """How a late part runs; the progress names it: ``resolve_by_…``."""

    NOTHING = "nothing"
    ONE_JOB = "one_job"
    DRIVER = "driver"
    PASS = "pass"
    TABLES = "tables"


@dataclass(frozen=True)
class Able:
    """The forms that a group's plan, its session and its local copies allow.

    Attributes:
        one_job: early and late part as one Spark job.
        driver: in the coordinator's process.
        one_partition: in one Spark partition, with copies where tasks run.
    """

    one_job: bool
    driver: bool
    one_partition: bool


@dataclass(frozen=True)
class Rows:
    """The rows that the early part of a batch has staged for the late one.

    Attributes:
        idle: the late part has nothing to do.
        size: in bytes, of the largest boundary.
    """

    idle: bool
    rows: int
    size: int


def choose(able: Able, staged: Rows | None, is_next: bool, is_open: bool) -> Form | None:
    """The form of a batch's late part.

    Args:
        staged: None before the early part has run.
        is_next: the transaction before has advanced.
        is_open: see Breaker.

    Returns:
        None: the early part runs first.
    """
    if staged is None:
        return Form.ONE_JOB if able.one_job and is_next and not is_open else None
    if staged.idle:
        return Form.NOTHING
    if is_open or staged.size > SMALL_BYTES:
        return Form.TABLES
    if able.driver and staged.rows <= DRIVER_ROWS_MAX:
        return Form.DRIVER
    return Form.PASS if able.one_partition else Form.TABLES


class Breaker:
    """Open for batches that read the tables, after one for which another form has worked in vain.

    Another attempt at such a batch reads the tables. The next transaction tries another form again: often one alone
    fires many windows, and those after it none. Where it fails as well, one transaction after it reads the tables
    without a try; then three, seven, and ten each time.
    """

    def __init__(self) -> None:
        self._times = self._since = self._until = 0

    def failed(self, txid: int) -> None:
        """A form was given up: it read too much, or met a value that only Spark can compute."""
        self._times += 1
        self._since, self._until = txid, txid + min(2 ** (self._times - 1), _PAUSE_MAX + 1)

    def worked(self) -> None:
        """A batch was computed in another form than on the tables."""
        self._times = self._since = self._until = 0

    def is_open(self, txid: int) -> bool:
        return self._since <= txid < self._until
