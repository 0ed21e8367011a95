"""The sources of DRPC streams in a topology, and the operations that cannot stand below them (docs/semantics.md 4).

A DRPC stream's source has no spout: its batches are requests. It belongs to no
batch group, has no transactions and therefore no committers, and its rows can
meet those of no other source, whose batches are others than its requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructField, StructType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.planning.nodes import Node, SourceNode
from trident.states.core.names import check_name
from trident.udf.types import parse_outputs


@dataclass(frozen=True, eq=False, kw_only=True)
class DrpcNode(SourceNode):
    """The source of a DRPC stream. Its batch is one row: the arguments of a request."""

    spout: Any = None

    @property
    def function(self) -> str:
        """The name that requests call."""
        return self.tx_id


Origins = Mapping[Node, "DrpcNode | None"]
"""Each node of a topology, and the DRPC source above it; None: its rows are those of batches."""


def drpc_node(function: str, fields: Any, known: Mapping[str, DrpcNode]) -> DrpcNode:
    """The source for a function.

    Args:
        known: the functions that the topology has.

    Raises:
        TopologyError: the name is taken or cannot be used.
        OutputTypeError: an argument has no type.
    """
    check_name("function", function)
    if function in known:
        raise TopologyError(
            f"the topology has a DRPC stream {function!r} already",
            found=f"the one at {known[function].location}",
            action="choose another name",
        )
    schema = StructType()
    for name, type_ in parse_outputs(fields):
        if type_ is None:
            raise OutputTypeError(
                f"the type of argument {name!r} of function {function!r} is not known", expected=f"'{name} string', say"
            )
        schema.add(StructField(name, type_, True))
    return DrpcNode(parents=(), schema=schema, operation=f"drpc {function}", tx_id=function)


def origin_of(node: Node, origins: Origins) -> DrpcNode | None:
    """The DRPC source above a new node; None: its rows are those of batches.

    Raises:
        TopologyError: several sources meet in it.
    """
    if isinstance(node, DrpcNode):
        return node
    found = list(dict.fromkeys(origins.get(parent) for parent in node.parents))
    if len(found) > 1:
        raise TopologyError(
            f"{node.operation} mixes rows of a request with others",
            found=" and ".join(
                "a stream of batches" if one is None else f"DRPC stream {one.function!r}" for one in found
            ),
            expected="streams of one DRPC function, or streams of spouts",
            action="let a state be written by the one and asked by the other: state_query",
        )
    return found[0] if found else None


def no_committer(origin: DrpcNode, what: str) -> TopologyError:
    """The error for an operation that needs transactions, below a DRPC source."""
    return TopologyError(
        f"{what} cannot stand below DRPC stream {origin.function!r}: no committer below it",
        found="a request, which is no transaction: it has no txid and commits nothing",
        expected="operations that change no state",
        action="write to states from streams of spouts, and ask them with state_query",
    )
