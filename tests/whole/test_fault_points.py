"""All I/O of the production code passes a fault point, or is named here with the reason why not.

The list is derived from the source (tests/whole/fault_point_scan.py): a new call that
writes, or that asks ZooKeeper, Spark or Delta, fails here until it is put into
a ``with fault_point(...)``, where the crash sweep then finds it.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.whole.fault_point_scan import ROOT, scan, scan_all
from trident.coordinators import faults

_TASK = "runs in a Spark task: inside the job that stage.write, spout.emit, resolve.stage or publish.user encloses"
_INSIDE = "called only inside of a fault point of its caller"
_READ = "hands its request to ZooKeeper._read, which passes zk.read, zk.sync or zk.ensure"
_SERVER = "files of the embedded server's own process, before anything is coordinated"
_SPACE = "removes what nobody needs any more: what stays costs space, and is removed by the next"
_OUTBOX = "the record of an outbox: inside publish.outside or open.outside, or a task's of their jobs"
_NO_BATCH = "no transaction: a command of the user's, whose tests stop it in its midst"
_LOOKS = "asks the session about what it has loaded, nothing outside"
_REHEARSED = "a standby's rehearsal, in a folder of its own: what fails there costs warmth"
_ROUND = "only extends the time of a round of a tuple topology, which commits nothing"
_FOLDER = "makes a folder, if it is not there; what writes into it has a fault point"

_COPY = "a copy is disposable: whatever fails in it, the tables are read"

_WORKER = "runs in the process that merges: inside the job that compact.write encloses"

_ARCHIVE = "an archive of classes is disposable: without it a JVM starts as always"

_PROBE = "asks, before anything runs, whether a cluster's hosts share the warehouse; nothing reads it again"

# function → (how many such calls it has, why none of them needs a fault point of its own)
_REPLAYED = "a job of a replay, which commits nothing and for which its caller waits"
_REGISTRY = "no I/O: values in memory"
EXEMPT: dict[str, tuple[int, str]] = {
    "coordinators/embedded.py:EmbeddedZooKeeper.ensure": (1, _SERVER),
    "coordinators/embedded.py:EmbeddedZooKeeper.stop": (1, _SERVER),
    "coordinators/embedded.py:_start": (2, _SERVER),
    "coordinators/embedded.py:_locked": (1, _SERVER),
    "coordinators/embedded_server.py:_Supervisor.run": (1, _SERVER),
    "coordinators/embedded_server.py:_Supervisor._launch": (3, _SERVER),
    "coordinators/embedded_server.py:_Supervisor._announce": (1, _SERVER),
    "coordinators/embedded_server.py:_Supervisor._stop_if_idle": (2, _SERVER),
    "coordinators/embedded_server.py:main": (1, _SERVER),
    "coordinators/zookeeper_connection.py:Connection._wait_first": (
        1,
        "the first connection; then zk.read",
    ),
    "coordinators/zookeeper_connection.py:Connection._try_again": (
        2,
        "after a refusal; then it reads",
    ),
    "coordinators/zookeeper.py:ZooKeeper.get": (1, _READ),
    "coordinators/zookeeper.py:ZooKeeper.exists": (1, _READ),
    "coordinators/zookeeper.py:ZooKeeper.children": (1, _READ),
    "coordinators/zookeeper.py:ZooKeeper.sync": (1, _READ),
    "coordinators/zookeeper.py:ZooKeeper.ensure_path": (1, _READ),
    "states/publishing/opening.py:TableOpener._detached_paths": (
        1,
        "saves a descriptor, which is descriptor.write",
    ),
    "states/publishing/opening.py:TableOpener._open_table": (1, "saves a descriptor, which is descriptor.write"),
    "trident/time_travel/rollback.py:_Rollback._describe": (1, "saves descriptors, which is descriptor.write"),
    "states/publishing/committer.py:Cleaner._drop_other_attempts": (1, _INSIDE + ": clean.staged"),
    "states/publishing/committer.py:Cleaner._drop_unnamed": (1, _INSIDE + ": clean.staged"),
    "trident/time_travel/captures.py:write_capture": (3, "a folder of the user's: no capture before its last file is"),
    "trident/time_travel/captures.py:Recording.requested_rows_of": (2, _REPLAYED),
    "trident/time_travel/captures.py:_states": (1, _REPLAYED),
    "trident/time_travel/captures.py:capture": (1, _REPLAYED),
    "trident/time_travel/replay.py:ReplayedState.differences": (1, _REPLAYED),
    "trident/time_travel/replay.py:_table": (1, _REPLAYED),
    "states/keyed/compactor.py:Compactor._fsync_plain": (2, _INSIDE + ": compact.drop"),
    "states/keyed/file_merge.py:FileMerge._delete": (1, _SPACE),
    "states/keyed/merge_files.py:FileMerger._rewritten": (1, _WORKER),
    "states/keyed/merge_files.py:Spill.__init__": (1, _WORKER),
    "states/keyed/merge_files.py:Spill.append": (1, _WORKER),
    "states/keyed/merge_files.py:Spill.tables": (1, _WORKER),
    "states/keyed/merge_files.py:spill_folder": (1, _WORKER),
    "states/keyed/merge_files.py:written": (2, _WORKER),
    "states/keyed/merge_worker.py:serve": (1, "Python's own garbage"),
    "states/core/local_copy.py:LocalCopy.__init__": (3, _COPY),
    "states/core/local_copy.py:LocalCopy._publish": (4, _COPY),
    "states/core/local_copy.py:LocalCopy.delete": (1, _COPY),
    "states/core/copy_rows.py:write_run": (5, _COPY),
    "states/core/copy_rows.py:Run.delete": (1, _COPY),
    "states/keyed/copies.py:copies_folder": (1, _SPACE),
    "states/keyed/copies.py:own_folder": (1, _COPY),
    "states/keyed/copies.py:forget_copies": (2, _INSIDE + ": apply.step"),
    "states/keyed/copies.py:settled_repair": (1, "fails the recovery, which is tried again"),
    "states/keyed/copies.py:settled_shards": (1, "fails the recovery, which is tried again"),
    "states/outside/outbox.py:OutboxLog.make": (1, _SPACE),
    "states/outside/outbox.py:OutboxLog.keep_letters": (1, _OUTBOX),
    "states/outside/outbox.py:OutboxLog._put": (6, _OUTBOX),
    "states/core/descriptor.py:StateDescriptor.remove": (1, _NO_BATCH),
    "states/keyed/reading.py:values_by_spark": (1, "reads for a call of the user's, beside all transactions"),
    "states/delta/kernel.py:TableSnapshot.control": (1, _LOOKS),
    "states/delta/kernel.py:TableSnapshot.txn_version": (1, _LOOKS),
    "states/delta/kernel.py:KernelEngine.create_table": (1, "guard builds, guard_commit is delta.commit"),
    "states/delta/kernel.py:KernelEngine._commit": (2, "guard builds, guard_commit is delta.commit"),
    "states/delta/kernel.py:TableSnapshot.takes_python_entries": (1, _LOOKS),
    "states/delta/kernel.py:KernelEngine._publish": (
        2,
        "guard asks which thread this is, guard_commit is delta.commit",
    ),
    "states/delta/kernel.py:KernelEngine._claim": (1, "guard_commit is delta.commit"),
    "states/delta/log_commit.py:_drafted": (1, _INSIDE + ": delta.commit"),
    "states/delta/log_commit.py:write_draft": (1, _INSIDE + ": delta.commit"),
    "states/delta/log_commit.py:publish_draft": (4, _INSIDE + ": delta.commit"),
    "states/delta/log_commit.py:_remove_rival_drafts": (1, "within delta.commit, or of a sweep: drafts that have lost"),
    "states/delta/log_commit.py:remove_draft": (1, _SPACE),
    "states/delta/log_commit.py:remove_drafts": (1, _SPACE),
    "states/delta/kernel.py:KernelEngine.add_columns": (1, _LOOKS),
    "states/delta/kernel.py:KernelEngine.take_over": (1, _LOOKS),
    "states/delta/kernel.py:KernelEngine.enable_control": (1, _LOOKS),
    "states/delta/kernel.py:KernelEngine.set_properties": (1, "guard builds, guard_commit is delta.commit"),
    "states/delta/torn_entries.py:_taken": (2, "an empty file to be locked"),
    "states/delta/kernel_files.py:fsync_log_entry": (3, _INSIDE + ": delta.commit"),
    "states/keyed/host_copy.py:_CatchUp._catch_up_to": (1, _COPY),
    "states/keyed/host_copy.py:_CatchUp._process_runs": (1, _COPY),
    "states/keyed/host_copy.py:_CatchUp.continue_in_process": (2, _COPY),
    "states/keyed/compactor.py:LogSweeper.sweep": (1, _SPACE),
    "states/history/cloning.py:_copy": (1, _INSIDE + ": clone.file"),
    "states/history/cloning.py:_flush": (1, _INSIDE + ": clone.entry"),
    "trident/time_travel/forking.py:_copy": (2, _INSIDE + ": fork.stream"),
    "trident/time_travel/forking.py:_Fork.make": (1, "saves descriptors, which is descriptor.write"),
    "states/delta/parquet_files.py:_OpenFile._flush": (2, _TASK),
    "states/maps/redis_store.py:RedisMap.clear": (1, _NO_BATCH),
    "states/delta/staging.py:drop_attempts_up_to": (1, _SPACE),
    "states/delta/staging.py:collected": (1, "within stage_by, which is stage.write"),
    "states/delta/staging.py:fsync_folders": (2, _INSIDE + ": stage.write"),
    "states/delta/torn_entries.py:set_aside_torn_entry": (
        1,
        "renames a file that nobody can read; done again if it was not done",
    ),
    "states/publishing/other_stores.py:UserStatePublisher._run": (1, _INSIDE + ": publish.user"),
    "trident/commands/doctor.py:_tried": (
        3,
        "a file that is written, read and removed, to see that it can be",
    ),
    "trident/commands/doctor.py:_tried_where_it_is_written": (1, "the folder in which it is tried"),
    "coordinators/zookeeper.py:ZooKeeper.server_time_ms": (1, "the doctor's look at the server's clock"),
    "trident/running/executor_probe.py:probe_executors": (1, _PROBE),
    "trident/running/executor_probe.py:probe": (1, _PROBE),
    "trident/running/cluster_checks.py:probe_cluster": (2, _PROBE),
    "trident/workers/anchors.py:Ledger.write": (2, _TASK),
    "trident/spouts/delta/log.py:DeltaFrames.sizes": (
        1,
        "reads a source's table while a batch is planned: not pinned yet",
    ),
    "trident/spouts/delta/log.py:DeltaFrames.listed": (1, "reads a source's table: a failure fails the attempt"),
    "trident/spouts/queues/directory_queue.py:DirectoryQueue._identify": (
        4,
        "names the directory once, when a queue is opened",
    ),
    "trident/spouts/queues/directory_queue.py:DirectoryQueue.copy": (
        3,
        "a copy of a consumed file, inside of the attempt's own folder",
    ),
    "trident/spouts/queues/directory_queue.py:_move": (2, _INSIDE + ": directory.remove"),
    "trident/spouts/queues/directory_queue.py:_Intake._folder": (2, _FOLDER),
    "trident/spouts/queues/directory_queue.py:_Intake.close": (1, _SPACE),
    "trident/spouts/queues/directory_queue.py:_Intake._give_back": (1, _SPACE),
    "states/keyed/fitting.py:Fitting._look_up": (1, "reads a state before the decision: a failure fails the attempt"),
    "states/keyed/fitting.py:Fitting.stuck_keys": (1, _NO_BATCH),
    "states/delta/kernel.py:KernelEngine.why_not_written": (1, "makes a transaction of Kernel's and commits nothing"),
    "trident/drpc/requests.py:DrpcRequests._rows": (1, "a request that reads; no batch"),
    "trident/drpc/request_jobs.py:RequestJobs.run": (1, "requests that read; no batch"),
    "trident/workers/requests.py:as_batch": (1, "into memory"),
    "trident/spouts/files/ledger.py:FileLedger._append_after": (1, "opens the file that spout.ledger appends to"),
    "trident/spouts/files/ledger.py:FileLedger.forget": (1, _SPACE),
    "trident/messages/ledger.py:BatchLedger.drop": (1, _SPACE),
    "trident/messages/ledger.py:drop_old": (1, _SPACE),
    "trident/messages/ledger.py:settled_messages": (1, "reads once, before a stream of messages begins"),
    "trident/spouts/partitions.py:PartitionEmission.run": (1, "within a tracked batch's job, before stage.write"),
    "trident/spouts/partitions.py:PartitionEmission.drop": (1, _SPACE),
    "trident/commands/new.py:new_project": (2, _NO_BATCH),
    "trident/planning/explain.py:write_svg": (1, _NO_BATCH),
    "trident/spouts/queues/redis_queue.py:RedisListQueue.clear": (1, _NO_BATCH),
    "trident/messages/dead_letters.py:request_replay": (1, _NO_BATCH),
    "trident/messages/dead_letters.py:ReplayRequests.done": (1, "removes a request; one that stays is known by its id"),
    "trident/commands/admin.py:_Removed.folder": (1, _NO_BATCH),
    "trident/tuples/tasks.py:ResetSender.send": (1, _ROUND),
    "trident/tuples/rounds.py:RoundWatch.__exit__": (1, _SPACE),
    "trident/streams/run_batch.py:run_batch": (1, _NO_BATCH),
    "trident/running/runner.py:SparkBatchRunner._resolve": (1, _SPACE),
    "trident/spark/class_archive.py:_Once.__call__": (1, _ARCHIVE),
    "trident/spark/class_archive.py:_delete_old_lists": (1, _ARCHIVE),
    "trident/spark/class_archive.py:give_up": (3, _ARCHIVE),
    "trident/spark/class_archive.py:is_whole": (1, _ARCHIVE),
    "trident/spark/class_archive.py:write_facts": (1, _ARCHIVE),
    "trident/spark/class_archive_maker.py:_make": (6, _ARCHIVE),
    "trident/spark/class_archive_maker.py:_prune": (3, _ARCHIVE),
    "trident/spark/class_archive_maker.py:_lower_priority": (1, _ARCHIVE),
    "trident/spark/class_archive_maker.py:main": (3, _ARCHIVE),
    "trident/spark/jars.py:_resolve": (1, "makes a session; no batch"),
    "trident/spark/jars.py:_write_list": (1, "makes a session; no batch"),
    "trident/spark/jars.py:cache_folder": (1, "makes a session; no batch"),
    "trident/spark/jars.py:resolved_jars": (1, "makes a session; no batch"),
    "trident/spark/jvm.py:log4j_file": (1, "makes a session; no batch"),
    "trident/spark/jvm.py:_own_folder": (3, "makes a session; no batch"),
    "trident/running/status.py:StatusWriter._write": (1, "status.json, which is never read for correctness"),
    "trident/running/status.py:StatusWriter._sweep": (1, "drafts of status.json, which is never read for correctness"),
    "trident/running/status.py:StandbyNote.renew": (1, "a standby's note, which is never read for correctness"),
    "trident/running/status.py:StandbyNote._delete": (1, "as above"),
    "trident/running/status.py:StandbyNote._sweep": (1, "as above"),
    "trident/spouts/structured_stream.py:StreamingRun._start": (
        1,
        "starts a streaming query; its batches return in stream.return",
    ),
    "trident/messages/batches.py:TrackedBatches._discard": (1, _SPACE),
    "trident/tuples/rounds.py:RoundRunner._level": (2, "at least once: a round that fails replays its messages"),
    "trident/running/standby.py:WarmUp._clean": (1, _REHEARSED),
    "trident/running/standby.py:WarmUp._drop_left_over": (1, _REHEARSED),
    "trident/running/standby.py:WarmUp._store": (2, _REHEARSED),
    "trident/watching/metrics.py:Instruments.collect": (1, _REGISTRY),
    "trident/watching/otel.py:Exporting._run": (1, _REGISTRY),
    "trident/operations/window_nodes.py:_Windows._numbered": (
        1,
        "reads states within resolve: its failure fails the attempt",
    ),
    "trident/operations/window_nodes.py:_Windows._turn": (
        1,
        "reads states within resolve: its failure fails the attempt",
    ),
    "trident/operations/window_parts.py:_turn": (
        2,
        "reads states within resolve: its failure fails the attempt",
    ),
    "trident/operations/timed.py:_Gather._turn": (
        1,
        "reads states within resolve: its failure fails the attempt",
    ),
}


def uncovered() -> dict[str, list[tuple[int, str]]]:
    return {function.name: function.sites for function in scan_all() if function.sites}


def test_every_io_of_the_production_code_passes_a_fault_point_or_says_why_not() -> None:
    found = uncovered()
    problems = [
        f"{name}, line {line}: {what} is in no fault point"
        for name in found.keys() - EXEMPT.keys()
        for line, what in found[name]
    ]
    problems += [
        f"{name} has {len(sites)} calls outside of fault points, {EXEMPT[name][0]} are accounted for: {sites}"
        for name, sites in found.items()
        if name in EXEMPT and len(sites) != EXEMPT[name][0]
    ]
    assert not problems, "\n".join(sorted(problems))


def test_no_exemption_is_left_over() -> None:
    assert EXEMPT.keys() - uncovered().keys() == set()


@pytest.mark.parametrize(
    ("body", "sites"),
    [
        ("os.replace(a, b)", ["os.replace"]),
        ("with faults.fault_point(X):\n        os.replace(a, b)", []),
        ("with lock, fault_point(X):\n        frame.collect()", []),
        ("with lock:\n        frame.collect()", ["frame.collect"]),
        ("open(path, 'wb')", ["open"]),
        ("open(path)", []),
        ("open(path, mode)", ["open"]),
        ("path.open('a')", ["path.open"]),
        ("storage.write(path, data)", ["storage.write"]),
        ("with faults.fault_point(X):\n        storage.delete(path)", []),
        ("storage.read(path)", []),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", ["os.open"]),
        ("os.open(path, os.O_RDONLY)", []),
        ("def inner():\n        path.unlink()\n    return inner", ["path.unlink"]),
        ("return guard(path, lambda: self._client.set_async(path))", ["guard", "self._client.set_async"]),
    ],
)
def test_the_scan_sees_io(body: str, sites: list[str]) -> None:
    (_, function) = scan(f"def f():\n    {body}\n", "m.py")
    assert [what for _, what in function.sites] == sites


def test_a_method_called_only_inside_a_fault_point_is_so() -> None:
    """The functions that are said to be inside of their caller's fault point have no other caller."""
    functions = scan_all()
    for name, (_, reason) in EXEMPT.items():
        if not reason.startswith(_INSIDE):
            continue
        function = next(one for one in functions if one.name == name)
        inside = {other for other, (_, why) in EXEMPT.items() if why.startswith(_INSIDE) or why == _TASK}
        outside = [
            other.name
            for other in functions
            if other.module == function.module and other.name not in inside and other.calls.get(function.short)
        ]
        assert not outside, f"{name} is called outside of any fault point by {outside}"


# Points that the crash sweep does not arm, and the test file that does.
ELSEWHERE = {
    "adopt.look": "test_adoption.py",
    "clone.entry": "test_fork.py",
    "clone.file": "test_fork.py",
    "fork.manifest": "test_fork.py",
    "fork.record": "test_fork.py",
    "fork.stream": "test_fork.py",
    "fork.zookeeper": "test_fork.py",
    "given.write": "test_fork.py",
    "handover.answer": "test_handover.py",
    "handover.enlist": "test_handover.py",
    "handover.request": "test_handover.py",
    "checkpoint.read": "test_migrate.py",
    "copy.open": "test_local_copies.py",
    "compact.settle": "test_views.py",
    "compact.view": "test_views.py",
    "copy.build": "test_local_copies.py",
    "copy.apply": "test_local_copies.py",
    "copy.piece": "test_host_copy.py",
    "copy.let_go": "test_host_copy.py",
    "copy.publish": "test_local_copy.py",
    "copy.compact": "test_local_copies.py",
    "copy.host": "test_host_copy.py",
    "spout.ledger": "test_file_ledger.py",
    "queue.put": "test_queue_spout.py",
    "queue.take": "test_queue_spout.py",
    "queue.hold": "test_queue_spout.py",
    "queue.acknowledge": "test_queue_spout.py",
    "queue.give_back": "test_queue_spout.py",
    "queue.take_over": "test_queue_spout.py",
    "directory.claim": "test_directory_spout.py",
    "directory.remove": "test_directory_spout.py",
    "stream.return": "test_stream_spout.py",
    "ledger.sum": "test_reliability_faults.py",
    "publish.memory": "test_query.py",
    "publish.outside": "test_outside.py",
    "open.outside": "test_outside.py",
    "renew.outside": "test_outside.py",
    "standby.stage": "test_warm_up.py",
    "apply.step": "test_contradictions.py",
    "repair.restore": "test_contradictions.py",
    "repair.ledger": "test_file_spout.py",
    "zk.rollback": "test_rollback.py",
    "rollback.table": "test_rollback.py",
    "capture.write": "test_replay.py",
    "history.write": "test_recorder.py",
    "history.tidy": "test_recorder.py",
}


@cache
def declared() -> dict[str, str]:
    """point → module, from the source: importing everything would need Spark."""
    found = {}
    for package in ("coordinators", "states", "trident"):
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)) if "register" in source else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register":
                    first = node.args[0] if node.args else None
                    if isinstance(first, ast.Constant) and re.fullmatch(r"[a-z]+\.[a-z_]+", str(first.value)):
                        found[str(first.value)] = path.name
    return found


def test_every_fault_point_is_armed_by_the_crash_sweep_or_by_a_test_that_is_named() -> None:
    from tests.chaos.cases import SWEPT

    assert declared().keys() == SWEPT | ELSEWHERE.keys()
    for point, file in ELSEWHERE.items():
        text = next(ROOT.joinpath("tests").rglob(file)).read_text(encoding="utf-8")
        family, _, name = point.partition(".")
        chosen = f"{family}.{{point}}:" in text and f'"{name}"' in text  # a parametrised test
        assert chosen or f"{point}:" in text, f"{file} does not arm {point}"


def test_what_is_declared_in_the_source_is_what_is_registered() -> None:
    import trident.coordinators.zookeeper  # noqa: F401

    assert faults.registered().keys() - {"test.declared"} <= declared().keys()
