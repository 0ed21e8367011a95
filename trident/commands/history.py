"""``trident history``: the transactions of a topology, from their table and from kept manifests, without Spark."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import TopologyError, TransactionNotKept
from trident.coordinators.identities import rollbacks_of
from trident.maintenance.inventory import warehouse_of
from trident.states.core.descriptor import list_descriptors
from trident.states.core.place import Place
from trident.states.delta.manifest import groups_with_manifests
from trident.states.history.recorded import BeforeRollback, Transactions, recorded_transactions

LAST = 20
_SHOWN_CHARS = 300


def history(
    name: str,
    txid: int | None = None,
    config: TridentConfig | None = None,
    group: str | None = None,
    last: int = LAST,
    as_json: bool = False,
) -> list[str]:
    """The past transactions of a topology, which may be running; in lines.

    Args:
        txid: only this one, with all that is known of it.
        group: only of this batch group.
        last: of each batch group the newest so many; 0: all that are kept. Those from before a rollback come with a
            word that says so.
        as_json: each line is a JSON object, of one transaction; with ``unreadable`` where its manifest cannot be read;
            ``taken_back`` says whether a rollback has taken it back. Those with ``unreadable`` have no more than group,
            txid and incarnation, and come last.

    Raises:
        TopologyError: the warehouse knows no such topology, or group.
        TransactionNotKept: nothing is known of the txid: the message says what is kept.
    """
    warehouse = warehouse_of(as_config(config), name)
    found = {
        each: recorded_transactions(warehouse, name, each, None if txid is None else {txid}, last or None, earlier=True)
        for each in _groups(warehouse, name, group)
    }
    if txid is not None and not any(_says(one) for one in found.values()):
        raise _not_kept(warehouse, name, txid, list(found))
    lines: list[str] = []
    for each, of_group in found.items():
        if as_json:
            detail = [(one.row, one.taken_back) for one in of_group.earlier]
            detail += [(row, False) for row in of_group.rows.values()]
            lines += [json.dumps({"group": each, **row, "taken_back": gone}, default=_json) for row, gone in detail]
            lost = dict(of_group.unreadable_earlier)
            lost |= {(of_group.incarnation, one): text for one, text in sorted(of_group.unreadable.items())}
            lines += [
                json.dumps({"group": each, "txid": one, "incarnation": incarnation, "unreadable": text})
                for (incarnation, one), text in lost.items()
            ]
        else:
            lines += list(_of_group(name, each, of_group, txid))
    return lines


def _groups(warehouse: Place, name: str, group: str | None) -> list[str]:
    described = (state.group for state in list_descriptors(warehouse, name))
    groups = sorted({*described, *groups_with_manifests(warehouse, name)})
    if group is not None and group not in groups:
        raise TopologyError(f"{name} has no batch group {group!r}", expected=f"one of {', '.join(groups) or 'none'}")
    return groups if group is None else [group]


def _not_kept(warehouse: Place, name: str, txid: int, groups: list[str]) -> TransactionNotKept:
    texts, oldest, newest = [], None, None
    for group in groups:
        known = recorded_transactions(warehouse, name, group, earlier=True)
        rows = sorted({*known.rows, *(one.row["txid"] for one in known.earlier)})
        if rows:
            texts.append(f"{group}: {rows[0]} to {rows[-1]}")
            oldest = rows[0] if oldest is None else min(oldest, rows[0])
            newest = rows[-1] if newest is None else max(newest, rows[-1])
    inside = oldest is not None and newest is not None and oldest < txid < newest
    what = "has no row: it changed nothing, or its manifest was lost" if inside else "is not recorded, or no longer"
    return TransactionNotKept(
        f"transaction {txid} of {name} {what}",
        txid=txid,
        oldest=oldest,
        newest=newest,
        found=f"transactions of {'; '.join(texts)}" if texts else "no transaction at all",
        action="`trident history` without --txid lists them; history_retention_txids says how many are kept",
    )


def _of_group(name: str, group: str, found: Transactions, txid: int | None) -> Iterator[str]:
    yield f"{name}, batch group {group}:"
    if found.problem:
        yield f"  (from manifests, since the table of transactions cannot be read: {found.problem})"
    if not _says(found):
        yield "  no transaction is kept"
    earlier = [(_place(one.row["incarnation"], one.row["txid"]), _earlier_lines(one, txid)) for one in found.earlier]
    earlier += [
        (_place(*lost), [f"{lost[1]}  NOT READABLE, from before rollback {rollbacks_of(lost[0]) + 1}: {why}"])
        for lost, why in found.unreadable_earlier.items()
    ]
    for _, shown in sorted(earlier):
        yield from (f"  {line}" for line in shown)
    before: int | None = None
    for each in sorted(found.rows.keys() | found.unreadable.keys()):
        if before is not None and each > before + 1:
            missing = f"{before + 1}" if each == before + 2 else f"{before + 1} to {each - 1}"
            yield f"  {missing}: no row, as of transactions that changed nothing"
        before = each
        if each in found.unreadable:
            yield f"  {each}  NOT READABLE: {found.unreadable[each]}"
            continue
        row = found.rows[each]
        yield from (f"  {line}" for line in (_details(row) if txid is not None else [_line(row)]))


def _place(incarnation: str, txid: int) -> tuple[int, int]:
    """Puts transactions from before rollbacks in the order in which they were made."""
    return rollbacks_of(incarnation), txid


def _earlier_lines(one: BeforeRollback, txid: int | None) -> list[str]:
    said = _before_rollback(one)
    return [*_details(one.row), f"  {said}"] if txid is not None else [f"{_line(one.row)}; {said}"]


def _says(found: Transactions) -> bool:
    return bool(found.rows or found.unreadable or found.earlier or found.unreadable_earlier)


def _before_rollback(one: BeforeRollback) -> str:
    known = {True: "; TAKEN BACK", False: "", None: "; whether it was taken back is not known any more"}
    return f"from before rollback {rollbacks_of(one.row['incarnation']) + 1}{known[one.taken_back]}"


def _line(row: dict[str, Any]) -> str:
    """One transaction on one line."""
    tables = ", ".join(
        f"{table['state']} {table['rows']:,}" + (f" (v{table['version']})" if table["version"] is not None else "")
        for table in row["tables"]
    )
    more = [f"{len(row['failures'])} failures"] if row["failures"] else []
    more += ["skipped"] if row["skipped"] is not None else []
    more += [f"code {row['code_id']}"] if row["code_id"] else []
    when = row["published_at"] or row["decided_at"]
    detail = "; ".join([f"{row['rows']:,} rows: {tables}", *more])
    return f"{row['txid']}  attempt {row['attempt_id']}  {_time(when)}  {detail}"


def _details(row: dict[str, Any]) -> Iterator[str]:
    parent = "none" if row["parent_attempt_id"] is None else f"{row['txid'] - 1} attempt {row['parent_attempt_id']}"
    yield f"transaction {row['txid']} attempt {row['attempt_id']}, which builds on {parent}"
    yield f"  incarnation {row['incarnation']}, epoch {_said(row['epoch'])}, code {_said(row['code_id'])}"
    times = (f"{what} {_time(row[f'{what}_at'])}" for what in ("begun", "decided", "published"))
    yield f"  {', '.join(times)}"
    for source in row["sources"]:
        yield f"  from {source['stream']}: {_said(source['spout'])} ({source['kind'] or 'kind not said'})"
        for part in ("metadata", "positions", "commit_data"):
            if source[part] is not None:
                yield f"    {part} {_shortened(source[part])}"
    for table in row["tables"]:
        version = "" if table["version"] is None else f" as version {table['version']}"
        size = f"{table['rows']:,} rows in {table['files']} files, {table['bytes']:,} bytes"
        yield f"  to {table['state']} ({table['kind']}): {size}{version}"
    for failure in row["failures"]:
        yield f"  attempt {failure['attempt_id']} failed {_time(failure['failed_at'])}: {_shortened(failure['error'])}"
    if row["skipped"] is not None:
        yield f"  skipped: {_shortened(row['skipped']) or 'no error is known'}"
    yield f"  manifest {row['manifest']}, sha256 {row['manifest_sha256']}"


def _said(value: object) -> str:
    return "not known" if value is None else str(value)


def _time(at: datetime.datetime | None) -> str:
    return "(time not known)" if at is None else at.astimezone().isoformat(sep=" ", timespec="milliseconds")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}… ({len(line)} characters; --json has all)"


def _json(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)
