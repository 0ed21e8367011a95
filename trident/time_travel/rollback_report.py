"""``trident rollback NAME --to N``: the report of a dry run, and of what was done."""

from __future__ import annotations

from collections.abc import Iterator

from trident.maintenance.facts import AUXILIARY, LOG, PLAIN
from trident.time_travel.rollback import RolledBack
from trident.time_travel.rollback_plan import Plan, TableMove

_ROLES = {LOG: "log of a keyed state", PLAIN: "keyed state", AUXILIARY: "beside the states"}


def report(name: str, rolled_back: RolledBack, applied: bool) -> str:
    """Returns what would be done, or was done, for a terminal."""
    unfinished = rolled_back.unfinished
    lines: list[str] = []
    if rolled_back.plan is not None:
        lines += _plan_lines(rolled_back.plan)
    elif unfinished is not None:
        lines.append(
            f"{name}: a rollback to transaction {unfinished.txid} of batch group {unfinished.group} was begun and has "
            "not ended"
        )
    if rolled_back.plan is not None and rolled_back.plan.is_there:
        return "\n".join([*lines, "It is at that transaction: there is nothing to take back."])
    if applied:
        return "\n".join([*lines, *(f"done: {text}" for text in rolled_back.done), f"{name} may be started again."])
    lines.append("Nothing was changed: this was a dry run.")
    if unfinished is not None:
        lines.append("--apply does the rest of it; until then the topology does not start.")
    elif rolled_back.plan is not None and not rolled_back.plan.refusals:
        lines.append("--apply does it.")
    return "\n".join(lines)


def _plan_lines(plan: Plan) -> Iterator[str]:
    group, last = plan.group, plan.group.recorded.current_txid - 1
    yield f"{plan.facts.name}, batch group {group.name}: transaction {last} is the last that has advanced"
    if plan.is_there:
        return
    if plan.refusals:
        yield f"It cannot be taken back to transaction {plan.asked}:"
        for refusal in plan.refusals:
            yield f"  - {refusal.text}"
            yield f"    {refusal.action}"
        return
    assert plan.last is not None, "a plan that is not refused has it"
    if plan.last.txid < plan.asked:
        yield (
            f"Transactions {plan.last.txid + 1} to {plan.asked} changed nothing: what they read is read again, and "
            f"counted from transaction {plan.last.txid + 1} on"
        )
    if group.decision is not None:
        yield f"transaction {group.decision.txid}, which is decided and not finished, is taken back with the others"
    yield f"Taken back to transaction {plan.last.txid}; the next is {plan.last.txid + 1}:"
    yield from (_move_line(move) for move in plan.moves)
    yield from _source_lines(plan)
    yield from _reader_lines(plan)


def _move_line(move: TableMove) -> str:
    table, (goes, comes) = move.table, move.rows
    role = f" ({_ROLES[table.role]})" if table.role in _ROLES else ""
    known = ["an unknown number of rows" if count is None else f"{count:,} rows" for count in (goes, comes)]
    version = table.then.version if table.then is not None else "?"
    return f"  {table.path}{role}: {known[0]} go, {known[1]} come back: those of table version {version}"


def _source_lines(plan: Plan) -> Iterator[str]:
    spouts = plan.group.manifest.spouts if plan.group.manifest else {}
    assert plan.last is not None
    for tx_id, spout in sorted(spouts.items()):
        if tx_id in plan.lost:
            yield f"  stream {tx_id} ({spout.get('spout')}): what it has given since DOES NOT COME AGAIN"
        else:
            yield f"  stream {tx_id} ({spout.get('spout')}): goes on behind transaction {plan.last.txid}"
    for name in plan.left:
        stays = plan.facts.elsewhere[name].group not in ("", plan.group.name)
        of = "of a batch group that stays, with marks of the incarnation before" if stays else "with later rows"
        yield f"  state {name}: left as it is, {of}; its next start asks what to do"
    for group in plan.facts.groups[1:]:
        yield f"  batch group {group.name}: stays at transaction {group.recorded.current_txid - 1}"


def _reader_lines(plan: Plan) -> Iterator[str]:
    yield "Readers downstream:"
    yield "  - a reader that has pinned a table version reads on: no file is deleted, until a VACUUM"
    yield "  - one that looks anew sees the rows of then; tables change one after the other, within a few seconds"
    yield (
        "  - a stream that reads one of these tables meets a commit that deletes rows: Spark's fails without "
        "skipChangeCommits, and a change data feed has the rows that go as deletes"
    )
    yield (
        f"  - states are read as of transaction {plan.last.txid if plan.last else '?'} from then on, of incarnation "
        f"{plan.incarnation}"
    )
