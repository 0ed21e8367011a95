"""Folders are made below what is there, and never above it.

A warehouse that was renamed or deleted while a topology runs must not be made
anew at its old place: whoever looks there would find half a warehouse, and
what is written there is written to nobody.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_folder(folder: str | os.PathLike[str], anchor: str | os.PathLike[str]) -> None:
    """Makes a folder, and those above it as far as the anchor, unless they are there.

    Args:
        folder: at or below the anchor.
        anchor: is there, or nothing is made.

    Raises:
        FileNotFoundError: the anchor is gone.
        OSError: it cannot be made.
    """
    folder, anchor = Path(folder), Path(anchor)
    if folder.is_dir():
        return
    steps = [anchor / Path(*parts) for parts in _beginnings(folder.relative_to(anchor).parts)]
    if not anchor.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder is gone, and it is not made again", str(anchor))
    for step in steps:
        try:
            os.mkdir(step)
        except FileExistsError:
            pass


def anchor_of(root: str | os.PathLike[str]) -> Path:
    """What must be there for a table, or for anything of the framework's own, to be made.

    For what is in a folder ``_trident`` that is this folder; for a table the folder that it is in.
    """
    path = Path(root)
    own = [above for above in path.parents if above.name == "_trident"]
    return own[0] if own else path.parent


def _beginnings(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [parts[: count + 1] for count in range(len(parts))]
