"""The ``add`` actions of a table version as its log has them, word for word: statistics are not made anew.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import unquote

from trident.coordinators.errors import TableError
from trident.states.delta.checkpoints import newest_checkpoint
from trident.states.delta.log_entries import read_actions


def adds_at(path: str, version: int, files: Collection[str]) -> list[Mapping[str, Any]]:
    """The actions that added some files, as they hold at a table version.

    Args:
        files: paths of live files of that version, not URL-encoded.

    Raises:
        TableError: what is left of the log does not have them.
    """
    wanted, found = set(files), dict[str, Mapping[str, Any]]()
    begin, actions = newest_checkpoint(path, version) if wanted else (version, iter(()))
    for kind, body in actions:
        if kind == "add" and unquote(body["path"]) in wanted:
            found[unquote(body["path"])] = {key: value for key, value in body.items() if value is not None}
    for each in range(begin + 1, version + 1):
        for action in read_actions(path, each):
            added = action.get("add")
            if added is not None and unquote(added["path"]) in wanted:
                found[unquote(added["path"])] = added
    missing = sorted(wanted - found.keys())
    if missing:
        raise TableError(
            f"the log of table {path} does not have files of its version {version}",
            found=f"no action that adds {missing[0]}",
            action="the log was cleaned meanwhile: run the command again",
        )
    return [found[name] for name in sorted(wanted)]
