"""``trident capture``: writes a kept transaction into a small folder, for tests and for looking at it elsewhere."""

from __future__ import annotations

import os

from trident.commands.user_file import load_topology
from trident.config import TridentConfig
from trident.coordinators.errors import TopologyError
from trident.states.core.place import Place, named_place
from trident.time_travel.captures import Capture, check_folder, write_capture
from trident.time_travel.capturing import STATE_ROWS, capture
from trident.topology import TridentTopology


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
        f"{name} {table.num_rows} rows{'' if name in whole else ' (those that were asked)'}"
        for name, table in found.states.items()
    )
    expected = ", ".join(f"{name} {table.num_rows} rows" for name, table in found.expected.items())
    return (
        f"{found.topology}/{found.group} {found.attempt}: input {inputs}; states read {states or 'none'}; "
        f"committed {expected or 'nothing'}\nin {place}: trident.testing.load_capture takes it"
    )
