"""Files of the warehouse are touched by the storage alone: any other access is found, or named here with its reason.

The list only shrinks: a module that is not in it takes `trident.states.core.storage`, and so does one that is in it for
what it does with a warehouse's path.
"""

from __future__ import annotations

import ast

import pytest

from tests.whole.fault_point_scan import PACKAGES, ROOT, dotted_name

_STORAGE = "the storage itself: its implementations"
_SERVER = "the embedded ZooKeeper server's own folder: that of a process of this machine"
_SOURCE = "a user's input files, which are not the warehouse's"
_QUEUE = "a user's queue folder, which is not the warehouse's"
_SQLITE = "the file of an SQLite database, which is bound to one host"
_SESSION = "the session's cache, jars and settings, and the user's own modules"
_MACHINE = "asks this machine: its processes, disks and rights"

# module → (how many such calls it has, why)
ALLOWED: dict[str, tuple[int, str]] = {
    "coordinators/embedded.py": (8, _SERVER),
    "coordinators/embedded_server.py": (14, _SERVER),
    "coordinators/processes.py": (6, _MACHINE),
    "coordinators/stored_json.py": (3, _STORAGE + ", and the embedded server's"),
    "states/core/imports.py": (1, _MACHINE),
    "states/core/local_copy.py": (18, "a copy beside the workers, which is thrown away when it is doubted"),
    "states/keyed/copies.py": (4, "the folder of copies on a disk of this host, outside of the warehouse"),
    "states/keyed/host_copy.py": (1, "the same, of an executor's host"),
    "states/core/hdfs_storage.py": (1, _STORAGE + ": drafts"),
    "states/core/object_storage.py": (2, _STORAGE + ": drafts, and large files until they are whole"),
    "states/core/copy_rows.py": (6, "the files of such a copy"),
    "states/core/local_storage.py": (41, _STORAGE),
    "states/keyed/merge_files.py": (
        1,
        "rows that do not fit into memory, of a table in a store: on a disk of this host",
    ),
    "states/keyed/merge_worker.py": (1, "the pipe to its parent"),
    "states/maps/sqlite_store.py": (1, _SQLITE),
    "trident/commands/doctor.py": (9, _MACHINE),
    "trident/commands/new.py": (4, "a new project, in the user's current folder"),
    "trident/commands/user_file.py": (4, _SESSION),
    "trident/watching/metrics.py": (2, _MACHINE),
    "trident/watching/lineage.py": (1, "where OpenLineage's own client looks for its settings"),
    "trident/watching/live_page.py": (1, "a file of the package"),
    "trident/watching/metric_table.py": (1, "a file of the package"),
    "trident/planning/explain.py": (1, "a drawing, where the user wants it"),
    "trident/running/executor_probe.py": (2, _MACHINE),
    "trident/settings.py": (1, "the user's file of settings, before anything else is known"),
    "trident/running/failures.py": (5, _MACHINE),
    "trident/spark/class_archive.py": (9, _SESSION),
    "trident/spark/class_archive_maker.py": (3, _SESSION),
    "trident/spark/cluster_files.py": (12, _SESSION),
    "trident/spark/jars.py": (9, _SESSION),
    "trident/spark/jvm.py": (10, _SESSION),
    "trident/spark/session.py": (2, _SESSION),
    "trident/spark/stores.py": (1, _SESSION),
    "trident/spouts/files/listing.py": (12, _SOURCE),
    "trident/spouts/files/tasks.py": (2, _SOURCE),
    "states/outside/http_sender.py": (1, "when the user's certificates were changed"),
    "states/outside/http_state.py": (1, "a file in which the user keeps a token"),
    "trident/kafka/client.py": (1, "a file in which the user keeps a password"),
    "trident/spouts/queues/directory_queue.py": (27, _QUEUE + "; and copies of its files, which are not flushed"),
    "trident/spouts/structured_stream.py": (2, "the checkpoint of a user's Structured Streaming query"),
}

OS = {
    *("access", "chmod", "chown", "fdopen", "fstat", "fsync", "link", "listdir", "lstat", "makedirs", "mkdir", "open"),
    *("readlink", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "statvfs"),
    *("symlink", "truncate", "unlink", "utime", "walk", "write"),
}
OS_PATH = {"exists", "lexists", "isfile", "isdir", "islink", "getsize", "getmtime", "samefile"}
# Methods of pathlib's paths; most take nothing, which tells them from others of that name.
WITHOUT_ARGUMENTS = {
    *["exists", "is_dir", "is_file", "is_symlink", "iterdir", "stat", "lstat", "touch", "rmdir", "unlink"]
}
OF_PATHS = {
    *["glob", "rglob", "mkdir", "read_text", "read_bytes", "write_text", "write_bytes", "symlink_to", "hardlink_to"]
}
PARQUET = {"read_table", "read_metadata", "read_schema", "ParquetFile", "ParquetWriter", "write_table"}
OPENED = (
    "io.BytesIO",
    "file",
    "data",
    "source",
    "self._file",
)  # what Parquet's functions may be given instead of a path


def accesses(source: str) -> list[tuple[int, str]]:
    """(line, call) of each access to files that is not the storage's."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [(call.lineno, dotted_name(call.func)) for call in calls if _touches_files(call)]


def _touches_files(call: ast.Call) -> bool:
    name = dotted_name(call.func)
    owner, _, last = name.rpartition(".")
    if owner == "storage":
        return False
    if name in ("open", "io.open", "fsync", "read_stored") or owner in ("shutil", "glob", "tempfile"):
        return True
    if (owner == "os" and last in OS) or (owner == "os.path" and last in OS_PATH):
        return True
    if owner in ("pq", "parquet") and last in PARQUET:
        given = call.args[1 if last == "write_table" else 0]
        return dotted_name(given.func if isinstance(given, ast.Call) else given) not in OPENED
    if not owner:
        return False
    if last in OF_PATHS:
        return True
    if last == "open":  # path.open("rb"), and not connection.open(record)
        return (
            bool(call.args)
            and isinstance(call.args[0], ast.Constant)
            and set(str(call.args[0].value)) <= set("rwxab+t")
        )
    return last in WITHOUT_ARGUMENTS and not call.args and {word.arg for word in call.keywords} <= {"missing_ok"}


def found() -> dict[str, list[tuple[int, str]]]:
    modules = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    all_ = {path.relative_to(ROOT).as_posix(): accesses(path.read_text(encoding="utf-8")) for path in modules}
    return {module: calls for module, calls in all_.items() if calls}


def test_no_module_touches_files_but_by_the_storage_or_for_a_reason() -> None:
    problems = []
    modules = found()
    for module, calls in modules.items():
        count, _ = ALLOWED.get(module, (0, ""))
        if len(calls) != count:
            problems.append(f"{module}: {len(calls)} accesses to files, {count} are accounted for: {calls}")
    assert not problems, "\n".join(problems)
    assert ALLOWED.keys() <= modules.keys(), "no longer needed"


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ("open(path)", ["open"]),
        ("os.stat(path)", ["os.stat"]),
        ("os.path.exists(path)", ["os.path.exists"]),
        ("shutil.rmtree(path)", ["shutil.rmtree"]),
        ("(folder / name).is_dir()", ["().is_dir"]),
        ("path.unlink(missing_ok=True)", ["path.unlink"]),
        ("folder.glob('*')", ["folder.glob"]),
        ("path.open('rb')", ["path.open"]),
        ("pq.read_table(path)", ["pq.read_table"]),
        ("pq.read_table(io.BytesIO(storage.read(path)))", []),
        ("pq.write_table(table, path)", ["pq.write_table"]),
        ("storage.stat(path)", []),
        ("storage.delete(path)", []),
        ("zk.exists(path)", []),
        ("committer.open(record)", []),
        ("os.getpid()", []),
        ("client.unlink('a')", []),
    ],
)
def test_an_access_is_seen(body: str, calls: list[str]) -> None:
    assert [call for _, call in accesses(body)] == calls
