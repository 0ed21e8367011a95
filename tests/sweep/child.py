"""A coordinator of the sweep in a process of its own: does what it is told on standard input, and answers.

``drain`` commits all there is; ``arm FAULT`` arms a fault of this process;
``stop`` ends it in good order.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.sweep.books import CLEANED_EACH_TIME, source_of
from tests.sweep.topologies import topology_of
from trident.coordinators import faults
from trident.spark.session import make_session
from trident.states.publishing import cleaning


def main(kind: str, folder: Path, warehouse: str, zookeeper: str, root: str, conf: str) -> None:
    for name, value in CLEANED_EACH_TIME.items():  # so that what each life leaves is seen
        setattr(cleaning, name, value)
    spark = make_session(
        "killed",
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "700m",
            "spark.ui.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            **json.loads(conf),
        },
    )
    query = topology_of(kind, source_of(kind, folder), folder / "maps.db").start(
        spark,
        warehouse=warehouse,
        zookeeper=zookeeper,
        zookeeper_root=root,
        zookeeper_session_timeout_secs=4,
        max_spout_pending=2,
    )
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "drain":
            query.process_all_available(120)
        elif command == "arm":
            faults.arm(argument)
        else:
            query.stop(compact=False)
            return
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
