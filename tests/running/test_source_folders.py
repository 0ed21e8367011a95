"""Folders that tasks read on a cluster: which they are, and the errors of hosts that have others."""

from __future__ import annotations

from pathlib import Path

from trident import DeltaAppend, DirectoryQueueSpout, FileSpout, FixedBatchSpout, TridentTopology
from trident.running.cluster_checks import folders_of_tasks, sample, unseen
from trident.states.core.place import Place


def test_the_folders_are_those_of_files_and_globs_and_each_has_its_reader(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "one.txt").write_text("1")
    topology = TridentTopology("folders")
    given = [tmp_path / "in", tmp_path / "one.txt", tmp_path / "in" / "*" / "x*.txt"]
    topology.new_stream("lines", FileSpout(given)).partition_persist(DeltaAppend("out"))
    topology.new_stream("fixed", FixedBatchSpout("n long", [])).partition_persist(DeltaAppend("other"))
    reader = "the FileSpout of stream 'lines'"
    expected = {str(tmp_path / "in"): reader, str(tmp_path / "one.txt"): reader}
    assert folders_of_tasks(topology.graph, Place("/w")) == expected


def test_the_folder_of_a_directory_queue_is_read_by_tasks_where_the_warehouse_is_in_a_store(tmp_path: Path) -> None:
    """Its copies lie in it then; else they are in the warehouse."""
    topology = TridentTopology("folders")
    spout = DirectoryQueueSpout(tmp_path, shared=True)
    topology.new_stream("files", spout).partition_persist(DeltaAppend("out"))
    assert folders_of_tasks(topology.graph, Place("/w")) == {}
    found = folders_of_tasks(topology.graph, Place("s3a://lake/w"))
    assert found == {str(tmp_path): "the DirectoryQueueSpout of stream 'files'"}


def test_a_host_that_has_another_folder_is_named_once_with_the_reader(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x" * number)
    (tmp_path / "below").mkdir()
    folders = {str(tmp_path): "the FileSpout of stream 'lines'", "/nowhere": "another"}
    looked = sample(folders)
    files = {name: str(tmp_path / name) for name in ("3.txt", "4.txt")}
    assert looked == {str(tmp_path): None, files["3.txt"]: 3, files["4.txt"]: 4}
    assert not list(unseen([{"host": "node1", "unseen": []}], looked, folders))
    (problem,) = unseen([{"host": "node1", "unseen": list(files.values())}], looked, folders)
    for text in ("node1", "stream 'lines'", files["3.txt"], f"{tmp_path} is the same on every host"):
        assert text in str(problem)


def test_a_file_that_was_taken_away_or_changed_meanwhile_is_no_lack_of_a_host(tmp_path: Path) -> None:
    for name in ("away", "changed"):
        (tmp_path / name).write_text("x")
    folders = {str(tmp_path): "the FileSpout of stream 'lines'"}
    looked = sample(folders)
    (tmp_path / "away").unlink()
    (tmp_path / "changed").write_text("more")
    lacking = {"host": "node1", "unseen": [str(tmp_path / "away"), str(tmp_path / "changed")]}
    assert not list(unseen([lacking], looked, folders))
