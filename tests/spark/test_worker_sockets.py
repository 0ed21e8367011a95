"""Python workers are reached over Unix sockets, in a folder that only their user enters and that does not fill up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trident.coordinators import processes
from trident.spark.jvm import ENABLED, FOLDER, socket_settings
from trident.spark.session import session_confs


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A short path, which pytest's own folders are not."""
    monkeypatch.chdir(tmp_path)
    return "."


def test_the_tests_own_workers_have_them(spark):
    def where(batches):
        for batch in batches:
            yield batch
            if os.environ["PYTHON_UNIX_DOMAIN_ENABLED"].lower() == "true":
                yield batch

    folder = spark.sparkContext.getConf().get(FOLDER)
    assert [row.id for row in spark.range(0, 1, 1, 1).mapInArrow(where, "id long").collect()] == [0, 0]
    assert os.stat(folder).st_mode & 0o777 == os.stat(Path(folder).parent).st_mode & 0o777 == 0o700
    assert any(name.endswith(".sock") for name in os.listdir(folder))


def test_a_path_of_the_longest_name_can_be_bound(base):
    folder = socket_settings(2, base)[FOLDER]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(os.path.join(folder, "." + "x" * 36 + ".sock"))


def test_folders_of_processes_that_are_gone_are_removed(base):
    own = Path(socket_settings(2, base)[FOLDER])
    host, pid, start = own.name.split("-")
    done = subprocess.Popen([sys.executable, "-c", "pass"])
    done.wait()
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    gone = [f"{host}-{done.pid}-1", f"{host}-{pid}-{start}0"]
    kept = [f"other-{done.pid}-1", f"{host}-{living.pid}-{processes.started(living.pid)}", "a file of another program"]
    for name in (*gone, *kept):
        (own.parent / name).mkdir()
        (own.parent / name / ".x.sock").write_text("")
    assert socket_settings(2, base)[FOLDER] == str(own)
    assert sorted(os.listdir(own.parent)) == sorted([own.name, *kept])
    living.communicate(b"\n")


@pytest.mark.parametrize("spoil", ["mode", "file", "link", "long", "missing"])
def test_where_no_folder_can_be_trusted_it_is_tcp_and_a_warning_says_why(base, spoil, caplog):
    users = Path(base, f"trident-{os.getuid()}")
    if spoil == "mode":
        users.mkdir()
        users.chmod(0o770)
    elif spoil == "file":
        users.write_text("")
    elif spoil == "link":
        Path(base, "elsewhere").mkdir(mode=0o700)
        users.symlink_to("elsewhere")
    elif spoil == "long":
        base = "x" * 60
        os.mkdir(base)
    else:
        base = "missing"
    assert socket_settings(2, base) == {}
    assert "over TCP" in caplog.text


def test_on_a_cluster_it_is_tcp_since_the_path_of_an_executors_own_folder_may_be_too_long():
    assert socket_settings(None) == {}
    assert not {ENABLED, FOLDER} & set(session_confs({"spark.master": "yarn"}))


def test_a_user_may_turn_them_off():
    assert not {ENABLED, FOLDER} & set(session_confs({"spark.master": "local[2]", ENABLED: "false"}))
