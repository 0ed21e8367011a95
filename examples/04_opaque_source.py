"""04: a source whose replay holds other rows, and still each row counts once. An opaque spout.

    python examples/04_opaque_source.py

A directory is a queue of files; until their transaction is committed their owner
may take them back or correct them. Here the first attempt fails, and before the
second one the owner does both. Only what the committed attempt has read counts.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from trident import DeltaMapState, DirectoryQueueSpout, Sum, TridentTopology

folder = Path(tempfile.mkdtemp(prefix="trident-example-"))
inbox = folder / "inbox"
inbox.mkdir()


def drop(name: str, text: str) -> None:
    """Files are written elsewhere and moved in, so that no reader sees half of one."""
    (folder / name).write_text(text)
    (folder / name).rename(inbox / name)


def parse(line: str) -> Iterator[tuple[str, int]]:
    account, amount = line.split()
    if amount == "1000000":  # the owner's mistake: the batch fails, and meanwhile it is corrected
        drop("2.txt", "ann 10\n")
        (inbox / "3.txt").unlink(missing_ok=True)
        raise ValueError(f"{account} pays {amount}?")
    yield account, int(amount)


topology = TridentTopology("payments")
(
    topology.new_stream("payments", DirectoryQueueSpout(inbox))
    .flat_map(parse, "account string, amount long")
    .group_by("account")
    .persistent_aggregate(DeltaMapState("balances"), "amount", Sum(), "balance")
)

if __name__ == "__main__":
    drop("1.txt", "ann 5\nbob 7\n")
    drop("2.txt", "ann 1000000\n")
    drop("3.txt", "bob 99\n")
    query = topology.start(warehouse=str(folder / "warehouse"))
    query.process_all_available()
    print("ann was corrected from 1000000 to 10, and bob's 99 were taken back:")
    query.snapshot("balances").orderBy("account").show()
    print("consumed:", ", ".join(sorted(path.name for path in (inbox / "done").iterdir())))
    print("waiting:", ", ".join(path.name for path in inbox.glob("*.txt")) or "nothing")
    query.stop()
