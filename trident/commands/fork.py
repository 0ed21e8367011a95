"""``trident fork``, ``diff`` and ``capture``: a topology as of a transaction, where two part, a fixture for tests."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trident.commands.exit_codes import EXIT_DIFFERENT, EXIT_NOT_COMPARED
from trident.commands.user_file import load_topology
from trident.config import TridentConfig
from trident.coordinators.errors import ConfigError, TopologyError
from trident.states.core.place import Place, named_place
from trident.time_travel.captures import STATE_ROWS, Capture, capture, check_folder, write_capture
from trident.time_travel.diff import Diff, Part, diff
from trident.time_travel.forking import fork
from trident.topology import TridentTopology


def fork_to(
    name: str,
    at: Sequence[str],
    as_name: str,
    target: str,
    config: TridentConfig,
    until_kept: bool = False,
    may_copy: bool = False,
    accept_acknowledging: bool = False,
) -> str:
    """Makes a fork.

    Args:
        at: a txid; of a topology with several batch groups GROUP=TXID for each.
        target: the fork's warehouse.
        config: its warehouse is the original's.

    Returns:
        what was done.

    Raises:
        ConfigError: that is no txid.
        TridentError: as ``trident.time_travel.forking.fork``.
    """
    made = fork(
        name,
        points(at),
        as_name,
        target,
        config,
        until_kept=until_kept,
        may_copy=may_copy,
        accept_acknowledging=accept_acknowledging,
    )
    return "\n".join(made.lines())


def points(at: Sequence[str]) -> Mapping[str, int] | int:
    """A txid, or group → txid."""
    found: dict[str, int] = {}
    for text in at:
        group, named, txid = text.rpartition("=")
        if not (txid.isascii() and txid.isdecimal()) or int(txid) < 1 or bool(named) != bool(group) or group in found:
            raise ConfigError(
                "--at says which transaction is the fork's last",
                found=" ".join(at),
                expected="a txid: 1, 2, 3…; of several batch groups GROUP=TXID, once for each",
            )
        found[group] = int(txid)
    if "" not in found:
        return found
    if len(found) > 1:
        raise ConfigError("--at is given several times", found=" ".join(at), expected="GROUP=TXID, once for each")
    return found[""]


def diff_of(
    name: str,
    other: str,
    target: str,
    config: TridentConfig,
    txids: str | None = None,
    group: str | None = None,
    as_json: bool = False,
) -> tuple[str, int]:
    """Compares a topology with its fork, or with another one.

    Args:
        target: the other one's warehouse.
        config: its warehouse is the first one's; of a fork's original it need not be given.
        txids: N, or N..M; None: all that both have.

    Returns:
        the text, and the exit code.

    Raises:
        ConfigError: that is no range.
        TridentError: as ``trident.time_travel.diff.diff``.
    """
    found = diff(name, other, target, config, span(txids), group)
    text = json.dumps(asdict(found), default=str) if as_json else "\n".join(lines(found))
    return text, exit_code_of(found)


def exit_code_of(found: Diff) -> int:
    """That of two that were compared tells whether they differ; where nothing could be compared it is another one."""
    if found.parting is not None:
        return EXIT_DIFFERENT
    return 0 if _is_compared(found) else EXIT_NOT_COMPARED


def _is_compared(found: Diff) -> bool:
    return found.first <= found.last


def span(text: str | None) -> tuple[int, int] | None:
    """The first and the last of the transactions that are compared."""
    if text is None:
        return None
    first, _, last = text.partition("..")
    ends = [each for each in (first, last or first) if each.isascii() and each.isdecimal()]
    if len(ends) < 2 or not 1 <= int(ends[0]) <= int(ends[1]):
        raise ConfigError(
            "--txid says which transactions are compared", found=text, expected="a txid, or FIRST..LAST, from 1"
        )
    return int(ends[0]), int(ends[1])


def lines(found: Diff) -> list[str]:
    """The comparison for people."""
    compared = f"compared: transactions {found.first} to {found.last} of {found.group}"
    text_lines = [
        compared if _is_compared(found) else f"nothing was compared: no transaction of {found.group} is there yet"
    ]
    if found.behind and not _is_compared(found):
        text_lines.append(
            f"{found.other} has not processed any of the {found.behind} transactions from {found.first} on"
        )
    elif found.behind:
        text_lines.append(
            f"{found.other} has not processed transaction {found.last + 1} yet, of {found.behind} to come"
        )
    for side, states in ((found.name, found.only_one), (found.other, found.only_other)):
        if states:
            text_lines.append(f"only {side} has: {', '.join(states)}")
    parting = found.parting
    if parting is None:
        return [*text_lines, "no difference"] if _is_compared(found) else text_lines
    text_lines.append(f"first difference: transaction {parting.txid}")
    for tx_id, (one, other) in parting.streams.items():
        text_lines.append(f"  stream {tx_id}: other batches: {found.name} {_shown(one)}, {found.other} {_shown(other)}")
    if parting.table:
        more = "" if parting.count <= len(parting.parts) else f", of which {len(parting.parts)} are shown"
        text_lines.append(f"  table {parting.table}: {parting.count} {_unit(parting.parts)} differ{more}")
        for part in parting.parts:
            text_lines += _part_lines(part, found.name, found.other)
        if len(parting.tables) > 1:
            text_lines.append(f"  and tables {', '.join(parting.tables[1:])}")
    return text_lines


def _unit(parts: Sequence[Part]) -> str:
    return "keys" if parts and parts[0].key else "rows"


def _part_lines(part: Part, name: str, other: str) -> list[str]:
    key = f"    key {_shown(part.key)}" if part.key else "    a row"
    text_lines = [key]
    for side, row, value in ((name, part.one, part.value), (other, part.other, part.other_value)):
        now = f", and holds {_shown(value)} then" if value is not None else ""
        text_lines.append(f"      {side}: {'nothing' if row is None else _shown(row)}{now}")
    return text_lines


def _shown(value: Any) -> str:
    text = repr(dict(value)) if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"


# ``trident capture``: writes a kept transaction into a small folder, for tests and for looking at it elsewhere.


def capture_to(
    name: str,
    txid: int,
    code: str,
    config: TridentConfig,
    folder: str | None = None,
    group: str | None = None,
    state_rows: int = STATE_ROWS,
) -> str:
    """Captures a kept transaction of a topology.

    Args:
        code: the file that defines the topology, FILE or FILE:NAME.
        folder: a new or empty one, or one with half a capture, of a command that was killed; None: ``NAME-TXID`` in
            the working folder.
        state_rows: of a state with more rows only those whose keys are asked are taken.

    Returns:
        what was captured, and where it is.

    Raises:
        TopologyError: the code is of another topology, or cannot be loaded, or the folder is not empty.
        TridentError: as ``trident.replay``.
    """
    topology = loaded(name, code)
    place = named_place(folder or f"{name}-{txid}")
    check_folder(place)  # told before a session is made
    found = capture(topology, config.warehouse, txid, group=group, config=config, state_rows=state_rows)
    write_capture(found, place)
    return _said(found, place)


def loaded(name: str, code: str) -> TridentTopology:
    """The topology of that name, from the user's file.

    Raises:
        TopologyError: the file cannot be loaded, or its topology has another name.
    """
    reference = code if ":" in os.path.basename(code) else f"{code}:{name}"
    topology, _ = load_topology(reference)
    if topology.name != name:
        raise TopologyError(
            f"{code} is not the code of topology {name!r}",
            found=f"a topology {topology.name!r}",
            action="name the file of the topology that ran: FILE, or FILE:NAME where it defines several",
        )
    return topology


def _said(found: Capture, place: Place) -> str:
    inputs = ", ".join(f"{tx_id} {table.num_rows} rows" for tx_id, table in found.inputs.items())
    whole = set(found.facts["whole"])
    states = ", ".join(
        f"{name} {table.num_rows} rows{'' if name in whole else ' (those that were requested)'}"
        for name, table in found.states.items()
    )
    expected = ", ".join(f"{name} {table.num_rows} rows" for name, table in found.expected.items())
    return (
        f"{found.topology}/{found.group} {found.attempt}: input {inputs}; states read {states or 'none'}; "
        f"committed {expected or 'nothing'}\nin {place}: trident.testing.load_capture takes it"
    )
