"""The standalone cluster that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.standalone import Standalone


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers; a test that changes one of them leaves it as it was."""
    with Standalone(tmp_path_factory.mktemp("cluster")) as made:
        yield made
