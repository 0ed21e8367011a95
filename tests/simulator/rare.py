"""The rare states that the seeds of the default run must reach, by the claim that each of them tests."""

from __future__ import annotations

RARE_STATES = (
    # What became of a write whose answer was lost is found out.
    "lost answer of begin that had happened",
    "lost answer of begin that had not happened",
    "lost answer of decide that had happened",
    "lost answer of decide that had not happened",
    "lost answer of advance that had happened",
    "lost answer of advance that had not happened",
    "lost answer of acquire that had happened",
    "lost answer of acquire that had not happened",
    # A lost session abandons what is in flight, wherever it is.
    "session lost while BEGINNING",
    "session lost while PROCESSING",
    "session lost while DECIDING",
    "session lost while PUBLISHING",
    "session lost while ADVANCING",
    "session lost with nothing live",
    "a process leads again",
    # A crash anywhere is finished or replayed by the next one.
    "crash while BEGINNING",
    "crash while PROCESSING",
    "crash while DECIDING",
    "crash while PUBLISHING",
    "crash while ADVANCING",
    "crash between two tables",
    "crash between publish and advance",
    "a decision is finished by another process",
    "success is told by another process than the one that advanced",
    "success is told again",
    "a spout is slow to hear of success",
    "a spout's commit is told again",
    # A coordinator that was paused and wakes up does no harm.
    "the leader is stopped (SIGSTOP)",
    "a leader wakes up and another leads",
    "another leads while the old leader lives",
    "a write of a deposed coordinator refused by the fence",
    "release of a deposed coordinator refused by the fence",
    "publish of a deposed coordinator refused",
    # Tables that fail, lose answers, and are changed by others.
    "failed after publish",
    "a commit lands long after its writer gave up waiting",
    "publish met another commit",
    "an older copy of a table is put in its place",
    "halted",
    "halted, and finished after a restart",
    # Sources and batches.
    "batch timeout",
    "pinned again smaller after a timeout",
    "pin used again by a replay",
    "emitted anew although it is pinned",
    "an opaque replay holds other rows",
    "an empty batch advances",
    "a begin is stored by an advance",
    "late report on an attempt that does not live any more",
    "attempt cap",
    # A hand-over to one standby.
    "a leader gives way to a hand-over",
    "the chosen standby leads",
    # Contenders, control, the machine.
    "three contend",
    "two contenders: one acquires, the other is refused",
    "a dead leader on the same host is followed at once",
    "suspended",
    "reconnected",
    "paused by the user",
    "stopped as asked",
    "stop finishes what is decided",
    "read from a server that lags",
    "read repeated after a lost connection",
    "a clock jumps while its process leads",
    # Batches look states up in local copies: of this host, and of executors' hosts.
    "a batch looks up in a copy",
    "an executor reads its host's copy",
    "a copy is refused",
)

# With an operator who rolls back.
ROLLBACK_STATES = (
    "a rollback is done",
    "a rollback is refused",
    "a rollback takes a decided transaction back",
    "a rollback is killed amid its work",
    "a rollback is finished by the next run of the command",
    "a start amid a rollback is refused",
)
