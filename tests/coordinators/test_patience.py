"""How long processing may take: more while a process is new, more where it was too little, also over restarts."""

from __future__ import annotations

from trident.coordinators.identities import TransactionAttempt as At
from trident.coordinators.retries import AttemptTimeouts


def factors_until_done(patience: AttemptTimeouts, txid: int, needs_secs: float) -> list[float]:
    """The times that a transaction is given until one suffices; the last is the one that does."""
    times: list[float] = []
    while not times or times[-1] < needs_secs:
        assert len(times) < 8, "the attempt cap"
        factor = 2 ** len(times)
        times.append(patience.secs(At(txid, len(times)), factor))
    patience.advanced(At(txid, len(times) - 1), 2 ** (len(times) - 1))
    return times


def test_a_process_has_four_times_the_time_until_its_first_transaction_has_advanced() -> None:
    patience = AttemptTimeouts(30, {})
    assert [patience.secs(At(txid, 0), 1) for txid in (1, 2, 3)] == [120, 120, 120]
    patience.advanced(At(1, 0), 1)
    assert patience.secs(At(4, 0), 1) == 30
    assert AttemptTimeouts(None, {}).secs(At(1, 0), 8) is None


def test_a_machine_that_is_three_times_too_slow_is_not_cancelled_for_every_transaction() -> None:
    patience = AttemptTimeouts(30, {})
    given = [factors_until_done(patience, txid, 100) for txid in range(1, 60)]
    assert given[:3] == [[120], [30, 60, 120], [120]]
    cancelled = sum(len(times) - 1 for times in given)
    assert cancelled <= 2 + 59 // 10, "one look in ten whether it has become quick again"


def test_a_machine_that_is_quick_again_comes_back_to_the_setting() -> None:
    patience = AttemptTimeouts(30, {})
    factors_until_done(patience, 1, 1000)
    given = [factors_until_done(patience, txid, 1)[0] for txid in range(2, 100)]
    assert given[0] == 30 * 32 and given[-1] == 30 and given == sorted(given, reverse=True)


def test_restarts_come_to_an_end_too() -> None:
    """Each coordinator is ended after two attempts, and the transaction needs more than ten times the setting."""
    greatest, times = -1, []
    for _ in range(8):
        patience = AttemptTimeouts(30, {7: greatest} if greatest >= 0 else {})
        for factor in (1, 2):
            greatest += 1
            times.append(patience.secs(At(7, greatest), factor))
    assert times == [120, 240, 120, 240, 480, 960, *[960, 1920] * 5]
    assert patience.secs(At(8, 0), 1) == 120, "the others have what is theirs"
