"""01: count words, exactly once. Run it twice: the second run adds only what is new.

    python examples/01_word_count.py [FOLDER]

Without a folder it makes one with two small files.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from trident import Count, DeltaMapState, FileSpout, TridentTopology


def split(sentence: str) -> Iterator[str]:
    yield from sentence.split()


def sample_folder() -> Path:
    folder = Path("trident-warehouse/example-input")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"a.txt": "the cow jumped\nover the moon\n", "b.txt": "the man went to the store\n"}.items():
        if not (folder / name).exists():
            (folder / name).write_text(text)
    return folder


folder = Path(sys.argv[1]) if len(sys.argv) > 1 else sample_folder()

topology = TridentTopology("first-words")
(
    topology.new_stream("lines", FileSpout(folder))
    .each("value", split, "word")
    .group_by("word")
    .persistent_aggregate(DeltaMapState("first_words"), Count(), "count")
)

if __name__ == "__main__":
    query = topology.start()
    query.process_all_available()
    query.snapshot("first_words").orderBy("count", "word", ascending=[False, True]).show()
    query.stop()
