"""The process that `restart` starts and kills; tells its steps on standard output, as JSON lines.

python -m benchmarks.restart_child trident|stream|spark FILES FOLDER LINES use|make|none

The last says of the archive of Spark's classes: used where there is one, made at the end, or neither.
"""

from __future__ import annotations

import time

_PYTHON_AT = time.time()

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

_COMMITS_BEFORE_KILL = 8


def _tell(step: str, at: float | None = None) -> None:
    print(json.dumps({"step": step, "at": time.time() if at is None else at}), flush=True)


def main(mode: str, files: Path, folder: Path, lines: int, archive: str) -> None:
    _tell("python", _PYTHON_AT)
    import trident  # noqa: F401
    from benchmarks import words
    from trident import DeltaMapState
    from trident.spark.class_archive import SETTING, make_now
    from trident.spark.session import make_session

    if mode == "trident":  # at its top, as a user's program has it: not behind its session
        from trident import Count, FileSpout, TridentTopology  # noqa: F401

    _tell("imported")
    classes = {SETTING: "false"} if archive == "none" else {}
    spark = make_session("restart", {"spark.driver.memory": "1g", **classes})
    _tell("spark")
    if mode == "spark":
        spark.range(1000).selectExpr("sum(id)").collect()
        _tell("committed")
    elif mode == "stream":
        _stream(spark, files, folder)
    else:
        query = _trident(spark, words.topology("words", files, DeltaMapState("counts"), lines), folder)
        if archive == "make":
            query.pause()  # the files are for the lives that follow
            make_now(spark, 600)
    _tell("kill")
    time.sleep(60)  # for the parent to kill it


def _trident(spark: object, topology: object, folder: Path) -> Any:
    from benchmarks.bench import advanced_at

    query = topology.start(spark, warehouse=str(folder), max_spout_pending=4, progress="none")  # type: ignore[attr-defined]
    _tell("started")
    while not query.is_leader:
        _alive(query)
    _tell("leads")
    while not query.recent_progress:
        _alive(query)
    # The first may be the rest of a decided one: that is not newly committed here.
    while not (
        fresh := [one for one in query.recent_progress if one["num_input_rows"] or one["duration_ms"].get("process")]
    ):
        _alive(query)
    _tell("committed", advanced_at(fresh[0]))
    while len(query.recent_progress) < _COMMITS_BEFORE_KILL:
        _alive(query)
    return query


def _alive(query: object) -> None:
    error = query.exception()  # type: ignore[attr-defined]
    if error is not None:
        raise error
    time.sleep(0.005)


def _stream(spark: object, files: Path, folder: Path) -> None:
    from benchmarks import peers, words

    # A fixed name, so that a batch that is tried again is recognised in the table.
    sink = peers.append_sink(folder / "table", words.counted, app="restart")
    done: list[float] = []

    def timed(frame: object, batch_id: int) -> None:
        sink(frame, batch_id)  # type: ignore[arg-type]
        done.append(time.time())

    query = peers.start_stream(spark, files, timed, folder / "checkpoint")  # type: ignore[arg-type]
    _tell("started")
    while len(done) < _COMMITS_BEFORE_KILL // 2:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.005)
    _tell("committed", done[0])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
