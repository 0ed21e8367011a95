"""A real standalone cluster of Spark: a master and workers that are hosts of their own, as far as one machine allows.

Each worker has a folder, an address (127.0.0.2, 127.0.0.3, …), an environment without any of the driver's variables, a
Python of its own that has neither the framework nor the user's modules, and where the system allows it a host name and
mounts of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from tests.cluster.installed import bare_environment
from tests.servers.zk_fixtures import wait_for
from trident.coordinators.embedded_server import LoopbackPort, die_with_parent

WAIT_SECS = 120.0
# The master, workers and executors run little code that is hot.
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
# The command that Python workers are started with: each host finds its own by its PATH.
PYTHON = "python-of-this-host"


def may_be_hosts() -> bool:
    """Tells whether processes may have a host name and mounts of their own here."""
    command = ["unshare", "--uts", "--mount", "hostname", "probe"]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    return False


def own_disk(folder: Path) -> str:
    """A shell command that hides the folder of temporary files behind an empty one, but for this folder in it."""
    hidden = Path(tempfile.gettempdir()).resolve()
    own = folder.resolve()
    assert own.is_relative_to(hidden), f"{own} is not in {hidden}"
    steps = (
        f"mount --bind '{own}' /mnt",
        f"mount -t tmpfs none '{hidden}'",
        f"mkdir -p '{own}'",
        f"mount --move /mnt '{own}'",
        f"cd '{own}'",
    )
    return " && ".join(steps)


class Process:
    """A master or a worker, started again under the same name after a kill."""

    def __init__(self, cluster: Standalone, name: str, address: str) -> None:
        self.cluster, self.name, self.address = cluster, name, address
        self.folder = cluster.folder / name
        for one in ("bin", "tmp", "work"):
            (self.folder / one).mkdir(parents=True)
        self.output = self.folder / "output"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *command: str, mounts: str = "") -> None:
        script = str(Path(_find_spark_home(), "bin", "spark-class"))
        run = [script, *command]
        if self.cluster.hosts:
            inside = f'hostname "$0" && {mounts or ":"} && exec "$@"'
            run = ["unshare", "--uts", "--mount", "sh", "-c", inside, self.name, *run]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                run,
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "HOME") if name in os.environ}
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "SPARK_HOME": _find_spark_home(),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
            "SPARK_LOCAL_IP": self.address,
            "SPARK_LOCAL_HOSTNAME": self.address,
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def says(self, text: str) -> bool:
        return self.output.exists() and text in self.output.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL; a worker's executors see it, and end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Standalone:
    """The cluster; use it as a context manager.

    Args:
        folder: its own.
        workers: their number.
        memory: of each, in MB.
        cores: of each; an executor takes one of them, and 600 MB.
        apart: the workers' hosts share no disk with each other and with the driver: each has an empty folder for
            temporary files, which all the tests' folders are in, and there its own folder alone. Needs ``hosts``.
    """

    def __init__(self, folder: Path, workers: int = 2, memory: int = 1024, cores: int = 1, apart: bool = False) -> None:
        self.folder, self.memory, self.cores, self.apart = folder, memory, cores, apart
        self.hosts = may_be_hosts()
        folder.mkdir(parents=True, exist_ok=True)
        self._port = LoopbackPort()
        self.url = f"spark://127.0.0.1:{self._port.number}"
        self.master = Process(self, "master", "127.0.0.1")
        self.workers = [Process(self, f"node{n}", f"127.0.0.{n + 1}") for n in range(1, workers + 1)]
        shared = None if apart else bare_environment(folder / "env")
        for one in self.workers:
            self.give_python(one, f'exec "{shared or bare_environment(one.folder / "env")}" "$@"')

    @staticmethod
    def give_python(worker: Process, script: str) -> None:
        """Lets a shell script be the Python of a worker's host."""
        command = worker.folder / "bin" / PYTHON
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    def __enter__(self) -> Standalone:
        try:
            self.start_master()
            for one in self.workers:
                self.start_worker(one)
            for one in self.workers:
                self.wait_registered(one)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_master(self) -> None:
        recovery = {"recoveryMode": "FILESYSTEM", "recoveryDirectory": str(self.folder / "recovery")}
        (self.folder / "recovery").mkdir(exist_ok=True)
        properties = self.folder / "master.conf"
        properties.write_text("".join(f"spark.deploy.{key} {value}\n" for key, value in recovery.items()))
        port = str(self._port.number)
        self.master.start(
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", port, "--webui-port", "0", "--properties-file", str(properties)),
        )

    def start_worker(self, worker: Process, mounts: str = "") -> None:
        """Args:
        mounts: a shell command that the host's own mounts are made with.
        """
        worker.output.unlink(missing_ok=True)
        mounts = mounts or (own_disk(worker.folder) if self.apart else "")
        worker.start(
            "org.apache.spark.deploy.worker.Worker",
            *("--host", worker.address, "--webui-port", "0", "--cores", str(self.cores), "--memory", f"{self.memory}M"),
            *("--work-dir", str(worker.folder / "work"), self.url),
            mounts=mounts,
        )

    def wait_registered(self, worker: Process) -> None:
        wait_for(lambda: worker.says("Successfully registered with master"), lambda: self.story())

    def executors(self, worker: Process | None = None) -> Iterator[int]:
        """The process ids of the cluster's executors, or of those of one worker."""
        below = str((worker.folder if worker else self.folder).resolve())
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                if b"CoarseGrainedExecutorBackend" in command and os.readlink(folder / "cwd").startswith(below + "/"):
                    yield int(folder.name)

    def kill_executor(self, worker: Process) -> None:
        """SIGKILL of one of a worker's, once it has any."""
        found: int = wait_for(lambda: next(self.executors(worker), None), self.story)
        with suppress(ProcessLookupError):
            os.kill(found, signal.SIGKILL)

    def close(self) -> None:
        for one in (*self.workers, self.master):
            one.kill()
        for executor in list(self.executors()):  # each would see that its worker has gone, some seconds later
            with suppress(ProcessLookupError):
                os.kill(executor, signal.SIGKILL)
        self._port.close()
        shutil.rmtree(self.folder / "recovery", ignore_errors=True)

    def story(self) -> str:
        """The last lines of all, and of their executors."""
        files = [one.output for one in (self.master, *self.workers)] + sorted(self.folder.glob("*/work/*/*/stderr"))[
            -4:
        ]
        return "\n".join(
            f"--- {file.relative_to(self.folder)}\n{file.read_text(errors='replace')[-1500:]}"
            for file in files
            if file.exists()
        )

    def settings(self, **more: str) -> dict[str, str]:
        """Spark settings of an application on it: an executor of one core on each worker."""
        return {
            "spark.executor.memory": "600m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _JAVA,
            "spark.driver.memory": "700m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            **more,
        }

    def environment(
        self, warehouse: Path | str, zookeeper: str, root: str, spark: Mapping[str, str] | None = None, **more: str
    ) -> Mapping[str, str]:
        """The environment of a driver: all that it is told of the cluster, the warehouse and ZooKeeper.

        Args:
            spark: more settings of Spark.
        """
        conf = "; ".join(f"{key}={value}" for key, value in {**self.settings(), **(spark or {})}.items())
        return {
            **os.environ,
            "PYSPARK_PYTHON": PYTHON,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TRIDENT_SPARK_MASTER": self.url,
            "TRIDENT_SPARK_CONF": conf,
            "TRIDENT_WAREHOUSE": str(warehouse),
            "TRIDENT_ZOOKEEPER": zookeeper,
            "TRIDENT_ZOOKEEPER_ROOT": root,
            "TRIDENT_PROGRESS": "none",
            **more,
        }
