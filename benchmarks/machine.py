"""What a figure must be read with: the machine and the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def describe(spark: "SparkSession", folder: Path) -> dict[str, Any]:
    """Cores, memory, kernel, versions, the load before the run, and where the data lies.

    Args:
        spark: the session that everything is measured on.
        folder: where tables and inputs are written.
    """
    context = spark.sparkContext
    java = spark._jvm.java.lang.System.getProperty
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(folder),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "java": f"{java('java.vendor')} {java('java.version')}",
        "spark": spark.version,
        "delta": metadata.version("delta-spark"),
        "spark_master": context.master,
        "driver_memory": context.getConf().get("spark.driver.memory", "1g"),
        "shuffle_partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "codec": spark.conf.get("spark.sql.parquet.compression.codec"),
        "commit": _commit(),
    }


def lines(machine: dict[str, Any]) -> list[str]:
    """The description for a reader."""
    return [
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, {machine['kernel']}, "
        f"{machine['file_system']}, load {machine['load_before']}",
        f"Python {machine['python']}, Spark {machine['spark']}, Delta {machine['delta']}, Java {machine['java']}",
        f"{machine['spark_master']}, driver {machine['driver_memory']}, "
        f"{machine['shuffle_partitions']} shuffle partitions, {machine['codec']}, commit {machine['commit']}",
    ]


def rss_mb(pid: int | None = None) -> float | None:
    """Resident memory of a process; None where there is no /proc."""
    try:
        text = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    except OSError:
        return None
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")]
    return round(int(found[0]) / 1024, 1) if found else None


def cpu_ms(pid: int | None = None) -> float:
    """CPU time so far of a process (this one) and of those below it: the JVM, the Python workers; 0 without /proc."""
    spent: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        spent[int(folder.name)] = sum(map(int, fields[11:15])) * 1000 / os.sysconf("SC_CLK_TCK")
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    waiting, total = [pid or os.getpid()], 0.0
    while waiting:
        process = waiting.pop()
        total += spent.get(process, 0.0)
        waiting += children.get(process, [])
    return total


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    within = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(within, key=lambda mount: len(mount[1]))[2] if within else "unknown file system"


def _commit() -> str:
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return answer.stdout.strip() or "unknown"
