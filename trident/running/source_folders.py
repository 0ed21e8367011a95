"""Folders that tasks read by the same path as the driver: a cluster's hosts must have the same ones there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trident.coordinators.errors import ClusterProblem
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import SourceNode
from trident.running.executor_look import Found
from trident.states.core import storage
from trident.states.core.place import Place

# Of a folder so many files are compared: the last ones by name.
_FILES = 3
Sample = dict[str, "int | None"]


def folders_of_tasks(graph: TopologyGraph, warehouse: Place) -> dict[str, str]:
    """Folder or file → its reader, for messages: those that spouts say by an attribute ``folders_of_tasks``, and by
    ``folders_beside_a_store`` where the warehouse is in one."""
    found = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            beside = () if warehouse.is_local else getattr(node.spout, "folders_beside_a_store", ())
            for folder in (*getattr(node.spout, "folders_of_tasks", ()), *beside):
                if "://" not in folder:  # a URL is the same on every host
                    found[folder] = f"the {type(node.spout).__name__} of stream {node.tx_id!r}"
    return found


def sample(folders: Mapping[str, str]) -> Sample:
    """Path → size of a file, None of a folder: the folders, and a few files of each, as the driver sees them."""
    found: Sample = {}
    for path in folders:
        known = storage.stat(path)
        if known is None:
            continue  # the spout says it itself
        found[path] = None if known.is_folder else known.size
        for name in sorted(storage.list_names(path))[-_FILES:] if known.is_folder else ():
            inside = storage.stat(storage.join(path, name))
            if inside is not None and inside.is_file:
                found[str(storage.join(path, name))] = inside.size
    return found


def unseen(executors: Sequence[Found], looked: Sample, folders: Mapping[str, str]) -> Iterator[ClusterProblem]:
    """One problem for each executor and reader whose folder is another one there."""
    now = sample(folders) if any(one["unseen"] for one in executors) else {}
    for one in executors:
        told = set()
        for path in one["unseen"]:
            folder = next(folder for folder in folders if path == folder or path.startswith(folder))
            # A file that was taken away or changed meanwhile says nothing.
            if now.get(path, -1) == looked[path] and folder not in told:
                told.add(folder)
                yield ClusterProblem(
                    f"the executors on {one['host']} do not have what {folders[folder]} reads",
                    found=f"{path} is not there, or is another one",
                    expected=f"{folder} is the same on every host, as the driver has it",
                    action="use a folder of a file system that every host has mounted at this path, or "
                    "spark_master=local[*]",
                )
