"""Archives of Spark's classes: their names, and that none that is damaged, foreign or half made does harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.programs import python
from trident.config import TridentConfig
from trident.coordinators.processes import find_java
from trident.spark import class_archive, class_archive_maker
from trident.spark.class_archive import SETTING, MakerJob, facts_path, is_whole, is_wide, jvm_options, read_facts
from trident.spark.jars import jar_path
from trident.spark.session import spark_settings

ROOT = Path(__file__).resolve().parents[2]
_CLASSES = "java/lang/Object id: 0\njava/lang/String id: 1\njava/util/HashMap id: 2\njava/util/zip/ZipFile id: 3\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, of a process without a JVM, whose user has decided nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in class_archive._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    for name in ("_recording", "_given"):
        monkeypatch.setattr(class_archive, name, None)
    return tmp_path / "cache" / "trident" / "classes"


def named(given: dict[str, str] | None = None, jars: tuple[str, ...] = ()) -> Path:
    """The archive for which the JVM would write a list."""
    option = jvm_options(given or {}, jars)
    assert option.startswith('"-XX:DumpLoadedClassList='), option
    assert class_archive._recording is not None
    return class_archive._recording.archive


def job_of(archive: Path, **changes: object) -> MakerJob:
    """A small archive, of four classes of the JDK."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    classes = archive.with_name(f"{archive.stem}-{len(os.listdir(archive.parent))}.classes")
    classes.write_text(_CLASSES + "java/util/Arr")  # its JVM is in the middle of a line
    job = MakerJob(str(classes), str(archive), find_java()[0], ["-XX:+UseSerialGC"], str(jar_path()))
    return replace(job, **changes)  # type: ignore[arg-type]


def in_a_process(job: MakerJob) -> "subprocess.Popen[bytes]":
    return class_archive.start_maker(job)


def starts(archive: Path, *options: str) -> bool:
    """Whether a JVM starts that is told to use this archive."""
    java = [find_java()[0], "-cp", str(jar_path()), "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={archive}", *options]
    return subprocess.run([*java, "-version"], capture_output=True).returncode == 0


def test_an_archive_is_named_by_all_that_the_jvm_compares(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"1")
    base = named({}, (str(jar),))
    assert base == named({"spark.driver.memory": "4g", "spark.app.name": "other"}, (str(jar),))
    others = [
        named({}, ()),
        named({"spark.driver.memory": "40g"}, (str(jar),)),
        named({"spark.driver.extraJavaOptions": "-XX:+UseZGC"}, (str(jar),)),
        named({"spark.driver.extraClassPath": "/mine.jar"}, (str(jar),)),
    ]
    jar.write_bytes(b"22")
    others.append(named({}, (str(jar),)))
    monkeypatch.setattr(class_archive, "java_identity", lambda: ("/other/java", "openjdk 99"))
    others.append(named({}, (str(jar),)))
    assert len({base, *others}) == 7


def test_heaps_with_wide_references() -> None:
    sizes = ("1g", "30g", "32G", "33000m", "1t", "512", "nonsense")
    assert [size for size in sizes if is_wide(size)] == ["32G", "33000m", "1t"]


@pytest.mark.parametrize("variable", class_archive._VARIABLES)
def test_a_user_who_decides_is_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    assert jvm_options({}, ())
    assert not jvm_options({SETTING: "false"}, ())
    for name in ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"):
        assert not jvm_options({name: "-Xshare:off"}, ())
    monkeypatch.setenv(variable, "-XX:SharedArchiveFile=/mine.jsa")
    assert not jvm_options({}, ())


def test_the_setting_turns_it_off() -> None:
    assert SETTING not in spark_settings(TridentConfig())
    assert spark_settings(TridentConfig(class_archive=False))[SETTING] == "false"


def test_a_home_that_cannot_be_written_to_needs_no_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parents[1].mkdir()
    cache.parents[1].chmod(0o500)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as root
    assert not jvm_options({}, ())
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert not jvm_options({}, ())


def test_a_running_jvm_is_told_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._gateway", object())
    assert not jvm_options({}, ())


def test_an_archive_is_made_once_by_two_processes_and_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = named()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit(7)")  # the user's own, in the folder where the process runs
    first, second = job_of(archive), job_of(archive)
    makers = [in_a_process(first), in_a_process(second)]
    codes = sorted(maker.wait(60) for maker in makers)
    assert codes in ([0, 0], [0, 2])  # 2: the other one was at it
    assert sorted(os.listdir(cache)) == sorted([archive.name, facts_path(archive).name, "making.lock"])
    assert starts(archive, "-Xshare:on")
    assert jvm_options({}, ()).startswith(f'"-XX:SharedArchiveFile={archive}"')
    # A JVM that it does not fit finds that out, and starts without.
    assert starts(archive, "-XX:-UseCompressedOops")
    assert not starts(archive, "-XX:-UseCompressedOops", "-Xshare:on")


def test_a_damaged_archive_is_not_used(cache: Path) -> None:
    archive = named()
    assert class_archive_maker_main(job_of(archive)) == 0
    whole = archive.read_bytes()
    facts = read_facts(archive)
    assert facts is not None and is_whole(archive)
    archive.chmod(0o600)

    # Cut short: of a JVM that were told to use this one, 17 dies.
    archive.write_bytes(whole[: len(whole) // 2])
    assert not is_whole(archive)
    archive.write_bytes(b"")
    assert not is_whole(archive)
    # Removed, while a process is about to start with it: the JVM goes on without.
    archive.unlink()
    assert not is_whole(archive) and starts(archive)

    # Of the right size, as a power cut may leave it: looked at once in a boot.
    archive.write_bytes(whole[:5000] + bytes(len(whole) - 5000))
    class_archive.write_facts(archive, replace(facts, boot="the boot before"), durable=False)
    assert not is_whole(archive) and not archive.exists()
    assert jvm_options({}, ()).startswith('"-XX:DumpLoadedClassList=')
    archive.write_bytes(whole)
    assert is_whole(archive)
    found = read_facts(archive)
    assert found is not None and found.boot == facts.boot  # not again in this one
    facts_path(archive).write_bytes(b"{")
    assert not is_whole(archive)


def class_archive_maker_main(job: MakerJob) -> int:
    return in_a_process(job).wait(60)


def test_a_maker_that_is_killed_or_fails_leaves_no_archive(cache: Path) -> None:
    archive = named()
    killed = in_a_process(job_of(archive))
    killed.kill()
    killed.wait(60)
    assert not is_whole(archive)
    assert class_archive_maker_main(job_of(archive, options=["-XX:NoSuchOption=1"])) == 1
    assert not is_whole(archive)
    assert "NoSuchOption" in class_archive.refusal_path(archive).read_text()
    assert not jvm_options({}, ())  # not tried again at each start
    os.utime(class_archive.refusal_path(archive), (0, 0))
    assert jvm_options({}, ())


def test_archives_do_not_pile_up(cache: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(6):
        archive = cache / f"{number}.jsa"
        archive.write_bytes(b"x")
        facts_path(archive).write_bytes(b"{}")
        os.utime(archive, (archive.stat().st_mtime - 100 * number,) * 2)
    (cache / "left.making").write_bytes(b"x")
    os.utime(cache / "left.making", (0, 0))
    (cache / "now.making").write_bytes(b"x")
    class_archive_maker._prune(cache, keep=cache / "5.jsa")
    left = "0.jsa 0.json 1.jsa 1.json 5.jsa 5.json now.making"
    assert " ".join(sorted(path.name for path in cache.iterdir())) == left


@pytest.mark.parametrize("dies_of", ["SharedArchiveFile", "spark.app.name=dies"])
@pytest.mark.long
def test_a_session_starts_where_the_jvm_dies_of_the_archive(cache: Path, tmp_path: Path, dies_of: str) -> None:
    """In place of an archive that makes the JVM crash, a Java that ends when it is given one; or in any case."""
    real = Path(find_java()[0])
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\ncase "$*" in *{dies_of}*) echo died >> {tmp_path}/died; exit 134;; esac\nexec "{real}" "$@"\n'
    )
    java.chmod(0o700)
    script = """
import json, sys
from trident.spark import class_archive
from trident.spark.session import make_session, session_confs
given = {"spark.master": "local[1]", "spark.driver.memory": "1g"}
session_confs(given)
archive = class_archive._recording.archive
archive.write_bytes(b"crashes")
facts = class_archive.ArchiveFacts(7, class_archive.checksum(archive), "")
class_archive.write_facts(archive, facts, durable=False)
assert "SharedArchiveFile" in session_confs(given)["spark.driver.extraJavaOptions"]
try:
    version = make_session("dies", given).version[:2]
except Exception as error:
    version = type(error).__name__
print(json.dumps([version, archive.exists(), class_archive.refusal_path(archive).exists()]))
"""
    done = python("-c", script, timeout_secs=300, JAVA_HOME=str(tmp_path / "jdk"))
    assert done.returncode == 0, done.stderr[-3000:]
    found, times = json.loads(done.stdout.splitlines()[-1]), (tmp_path / "died").read_text().count("died")
    if dies_of == "SharedArchiveFile":
        assert (found, times) == (["4.", False, True], 1)
    else:  # it was not the archive
        assert (found, times) == (["SparkSessionProblem", True, False], 2)


def test_jobs_go_to_the_process_as_they_are(cache: Path) -> None:
    job = job_of(cache / "a b.jsa")
    assert MakerJob(**json.loads(json.dumps(asdict(job)))) == job
    shutil.rmtree(cache)
    assert class_archive_maker_main(job) == 1  # the user has cleaned up: nothing is made anew
    assert not cache.exists()


def test_an_archive_that_the_jvm_was_never_told_of_is_not_blamed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of the user's own, which took none of our options."""
    archive = named()
    archive.write_bytes(b"x")
    arguments: list[str] = []
    monkeypatch.setattr(class_archive, "_arguments", lambda spark: arguments)
    monkeypatch.setattr(class_archive, "is_used", lambda spark: False)
    monkeypatch.setattr(class_archive, "_recording", None)
    for told in (False, True):
        monkeypatch.setattr(class_archive, "_given", archive)
        monkeypatch.setattr(class_archive, "_asked_to_make", False)
        arguments[:] = [f"-XX:SharedArchiveFile={archive}"] if told else ["-Xmx1g"]
        class_archive.make_later(None)  # type: ignore[arg-type]
        assert archive.exists() is not told


def test_lists_of_processes_that_were_killed_do_not_pile_up(cache: Path) -> None:
    named()
    old, new = cache / "old.classes", cache / "new.classes"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    named()
    assert not old.exists() and new.exists()


def test_what_is_not_this_users_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = named()
    cache.chmod(0o777)
    assert jvm_options({}, ()) and cache.stat().st_mode & 0o777 == 0o700
    archive.write_bytes(b"x")
    facts = class_archive.ArchiveFacts(1, class_archive.checksum(archive), "")
    class_archive.write_facts(archive, facts, durable=False)
    assert is_whole(archive)
    archive.chmod(0o666)
    assert not is_whole(archive)
    archive.chmod(0o600)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not is_whole(archive) and not jvm_options({}, ())


def test_no_archive_is_made_where_the_memory_is_short(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cgroup(limit: object, used: int, inactive: int = 0) -> bool:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")
        return class_archive.has_memory()

    monkeypatch.setattr(class_archive, "_CGROUP", tmp_path)
    assert class_archive.has_memory(), "there is no limit"
    assert [cgroup("max", 1 << 40), cgroup(4 << 30, 1 << 30), cgroup(2 << 30, 3 << 29, 1 << 29)] == [True] * 3
    assert not cgroup(2 << 30, 3 << 29)
    job, started = job_of(cache / "one.jsa"), []
    monkeypatch.setattr(class_archive, "start_maker", started.append)
    class_archive._Once(job).and_wait()
    assert not started and not Path(job.classes).exists()


def test_the_process_that_has_made_an_archive_does_not_stay_defunct(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def start(job: MakerJob) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["true"]))
        return started[-1]

    monkeypatch.setattr(class_archive, "start_maker", start)
    monkeypatch.setattr(class_archive, "has_memory", lambda: True)
    once = class_archive._Once(job_of(cache / "one.jsa"))
    once.and_wait()
    once()
    assert [process.returncode for process in started] == [0]
