"""A place is what a PurePath is, also where it is a URL."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators.errors import ConfigError
from trident.states.core import storage
from trident.states.core.place import Place, warehouse_place

_NAME = st.text(
    st.characters(blacklist_characters="/\0:", blacklist_categories=("Cs",)), min_size=1, max_size=6
).filter(lambda name: name not in (".", ".."))
_ROOT = st.sampled_from(["", "s3a://lake", "hdfs://node:9000"])


@given(_ROOT, st.lists(_NAME, min_size=1, max_size=4), _NAME)
def test_it_is_a_path_behind_a_root(root: str, names: list[str], last: str) -> None:
    path = PurePosixPath("/", *names)
    place = Place(f"{root}{path}")
    assert str(place) == os.fspath(place) == f"{root}{path}" and place.name == path.name and place.root == root
    assert str(place / last) == f"{root}{path / last}" and (place / last).parent == place
    assert [str(each).rstrip("/") for each in place.parents] == [f"{root}{each}".rstrip("/") for each in path.parents]
    assert (place / last / "x").relative_to(place) == f"{last}/x"
    assert pickle.loads(pickle.dumps(place)) == place and hash(Place(str(place))) == hash(place)
    assert storage.join(place, last) == str(place / last)


def test_roots_are_apart() -> None:
    assert Place("s3a://lake/a") != Place("s3a://pond/a") and Place("/a") != Place("hdfs://n/a")
    assert Place("file:///a%20b/c") == Place("/a b/c/") and Place("s3a://lake") / "w" == Place("s3a://lake/w")
    with pytest.raises(ValueError, match="not below"):
        Place("s3a://lake/ab").relative_to(Place("s3a://lake/a"))
    with pytest.raises(ValueError, match="absolute"):
        Place("a")


def test_a_place_takes_the_settings_of_its_store_to_another_process() -> None:
    storage.configure("s3a://sent", {"fs.s3a.endpoint": "http://elsewhere"})
    sent = pickle.dumps([Place("s3a://sent/w")])
    code = (
        "import pickle, sys; found = pickle.loads(sys.stdin.buffer.read());"
        "from trident.states.core import storage; print(found[0], dict(storage.settings_of('s3a://sent')))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "s3a://sent/w {'fs.s3a.endpoint': 'http://elsewhere'}"


def test_a_url_with_credentials_is_refused_and_shows_none() -> None:
    with pytest.raises(ConfigError, match="holds no credentials") as raised:
        warehouse_place("s3a://KEY:HIDDEN@lake/w@1")
    assert "s3a://…@lake" in str(raised.value) and "HIDDEN" not in str(raised.value) and "KEY" not in str(raised.value)
    assert str(warehouse_place("s3a://lake/w@1")) == "s3a://lake/w@1"


@pytest.mark.parametrize("bad", ["gs://lake/w", "s3a:///w", "http://h/w", "hdfs://"])
def test_a_warehouse_that_cannot_be_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="no place for a warehouse"):
        warehouse_place(bad)


def test_a_warehouse_of_this_machine_is_its_real_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert (
        str(warehouse_place("link/w"))
        == str(tmp_path / "real" / "w")
        == str(warehouse_place(f"file://{tmp_path}/link/w"))
    )
    assert str(warehouse_place("s3a://lake/w/")) == "s3a://lake/w"
