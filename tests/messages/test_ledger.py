"""The ledger of a tracked batch: a root whose sum over all tasks is not zero has failed (docs/semantics.md 6)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trident.messages.ledger import BatchLedger


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_a_message_of_which_a_row_is_missing_has_failed_and_no_other(tmp_path: Path) -> None:
    ledger = BatchLedger(tmp_path)
    # Roots 1 and 2 of one row each, root 3 of two; what ends is told with the same numbers.
    ledger.init(numbers(1, 2, 3, 3), numbers(5, 6, 8, 9))
    assert ledger.failures().keys() == {1, 2, 3}
    ledger.init(numbers(1, 3), numbers(5, 8))
    ledger.init(numbers(2), numbers(6))
    (failed,) = ledger.failures().items()
    assert failed[0] == 3 and "lost or doubled" in failed[1].error
    ledger.init(numbers(3), numbers(9))
    assert ledger.failures() == {}


def test_a_row_that_ends_twice_fails_its_message(tmp_path: Path) -> None:
    ledger = BatchLedger(tmp_path)
    ledger.init(numbers(1), numbers(5))
    for _ in range(2):
        ledger.init(numbers(1), numbers(5))
    assert ledger.failures().keys() == {1}
