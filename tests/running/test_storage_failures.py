"""What an error is said to mean: a full disk, a folder that cannot be written, no memory; and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trident.coordinators.errors import (
    BatchOutOfMemory,
    BatchTimeout,
    Halted,
    SourceError,
    StorageProblem,
    TableError,
    UserFunctionError,
)
from trident.running.failures import FailureExplainer


def caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        RuntimeError("Job aborted: java.io.IOException: No space left on device\n\tat java.io.FileOutputStream"),
        TableError("it is not known whether the commit happened", found="FSError: No space left on device"),
        caused(SourceError("the ledger cannot be written"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        RuntimeError("sqlite3.OperationalError: database or disk is full"),
    ],
)
def test_a_full_disk_is_named_with_its_folder_and_what_to_do(tmp_path: Path, error: Exception) -> None:
    meaning = FailureExplainer([tmp_path])(error)
    assert isinstance(meaning, StorageProblem) and meaning.__cause__ is error
    for said in ("No space left on device", str(tmp_path), " free of ", "make room there", "nothing is lost"):
        assert said.lower() in str(meaning).lower()
    assert FailureExplainer([tmp_path])(meaning) is meaning, "explained once"


@pytest.mark.parametrize(
    ("number", "said", "meaning", "kind"),
    [
        (
            errno.EIO,
            "SlowDown: Please reduce your request rate.",
            "the store cannot be reached, or fails",
            "Unreachable",
        ),
        (errno.EACCES, "RequestTimeTooSkewed: The difference", "clock is too far from the store's", "Problem"),
        (errno.EACCES, "AccessDenied", "the store refuses this process", "Problem"),
        (errno.ENODEV, "the bucket does not exist", "the bucket does not exist", "Problem"),
        (errno.EROFS, "org.apache.hadoop.hdfs.server.namenode.SafeModeException", "in safe mode", "Unreachable"),
    ],
)
def test_an_error_of_a_store_is_told_in_words_also_from_a_task(tmp_path, number, said, meaning, kind):
    """Of a Python worker's error the text alone comes back."""
    named = "s3a://lake/w/counts/data/part-0.parquet"
    error = OSError(number, said, named)
    in_a_task = RuntimeError(f"Job aborted due to stage failure\nTraceback …\n{type(error).__name__}: {error}\n\tat x")
    for each in (error, caused(TableError("it could not be written"), error), in_a_task):
        found = FailureExplainer([tmp_path])(each)
        assert type(found).__name__ == f"Store{kind}" and found.__cause__ is each
        assert meaning in str(found) and named in str(found) and "nothing is lost" in str(found)
    missing = FileNotFoundError(errno.ENOENT, "no such object", named)
    assert FailureExplainer([tmp_path])(missing) is missing


def test_a_folder_that_may_not_be_written_is_named_and_a_refusal_by_others_is_not_ours(tmp_path, monkeypatch):
    (tmp_path / "counts").mkdir()
    explain, error = FailureExplainer([tmp_path]), PermissionError(errno.EACCES, "Permission denied")
    assert explain(error) is error, "every folder of ours can be written"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "counts")
    assert isinstance(explain(error), StorageProblem) and str(tmp_path / "counts") in str(explain(error))
    (tmp_path / "warehouse").mkdir()
    explain = FailureExplainer(
        [tmp_path / "warehouse", tmp_path]
    )  # as Spark's temporary folder, which may be everybody's
    assert explain(error) is error, "folders of others in it"


@pytest.mark.parametrize(
    "text",
    [
        "ExecutorLostFailure (executor 0 exited caused by one of the tasks) Reason: Command exited with code 52",
        "Lost task 0.0: java.lang.OutOfMemoryError: Java heap space",
        "org.apache.spark.SparkException: Not enough memory to build and broadcast the table to all worker nodes.",
        "Total size of serialized results of 9 tasks (1.1 GiB) is bigger than spark.driver.maxResultSize (1024.0 MiB)",
        "pyarrow.lib.ArrowMemoryError: malloc of size 1099511627776 failed",
    ],
)
def test_no_memory_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    meaning = FailureExplainer([tmp_path])(RuntimeError(f"Job aborted due to stage failure\n{text}\nDriver stacktrace"))
    assert isinstance(meaning, BatchOutOfMemory)
    for said in (text[:100], "max_rows", "spark.executor.memory"):
        assert said in str(meaning)


def test_a_users_function_without_memory_is_said_with_its_line(tmp_path: Path) -> None:
    error = UserFunctionError("split failed at words.py:7: MemoryError", operation="split", location="words.py:7")
    meaning = FailureExplainer([tmp_path])(error)
    assert isinstance(meaning, BatchOutOfMemory) and "words.py:7" in str(meaning)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError("Command exited with code 137"),  # somebody's SIGKILL
        UserFunctionError("f failed: [Errno 28] No space left on device", operation="f", location="f.py:1"),
        BatchTimeout("took longer than message_timeout_secs"),
        Halted("the manifest cannot be read: [Errno 30] Read-only file system"),
    ],
)
def test_everything_else_stays_what_it_is(tmp_path: Path, error: Exception) -> None:
    assert FailureExplainer([tmp_path])(error) is error


def test_a_folder_that_is_gone_hides_nothing(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert FailureExplainer([tmp_path / "gone"])(error) is error
