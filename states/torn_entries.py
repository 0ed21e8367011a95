"""Sets aside the newest log entry of a Delta table when it is torn, so that the table can be read and written again.

A log entry is written as a draft and renamed, so it is there as a whole or not
at all; with two exceptions. A power cut right after the rename can leave a
name without its bytes (Delta flushes nothing; our commits count only once they
are flushed, see ``settle_log_entry``). And where a rename is refused, Hadoop's
local file system copies instead, which a full disk or a SIGKILL can interrupt
(seen: a rename refused with ENOSPC leaves the beginning of the entry there).
Nobody has been told that such a commit happened; but the file would stop
every reader, and every later commit.

Should it be an entry that did count (a disk that lost what it had flushed), the
control record is then older than what ZooKeeper says, and the topology halts.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid

from states.kernel_files import commit_lock, local_path

log = logging.getLogger(__name__)
_ENTRY = re.compile(r"\d{20}\.json")


def set_aside_torn_entry(path: str) -> str | None:
    """Renames the newest log entry if it is torn; not re-entrant under :func:`commit_lock`, which it takes.

    Args:
        path: the table's root.

    Returns:
        The path that the entry has now; None when it is whole, or the table is not on a local disk.

    Raises:
        OSError: it cannot be read or renamed.
    """
    root = local_path(path)
    folder = None if root is None else os.path.join(root, "_delta_log")
    if folder is None or not os.path.isdir(folder) or _newest_torn(folder) is None:
        return None
    # Whoever writes entries in any other way than by renaming holds this lock.
    with commit_lock(path):
        name = _newest_torn(folder)
        if name is None:
            return None
        aside = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.torn")
        os.rename(os.path.join(folder, name), aside)
    log.warning("the newest log entry of table %s is torn and was set aside as %s", path, aside)
    return aside


def _newest_torn(folder: str) -> str | None:
    entries = [name for name in os.listdir(folder) if _ENTRY.fullmatch(name)]
    if not entries:
        return None
    newest = max(entries)
    try:
        with open(os.path.join(folder, newest), "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None  # cleaned up meanwhile
    try:
        whole = bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        whole = False
    return None if whole else newest
