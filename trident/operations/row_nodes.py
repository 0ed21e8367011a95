"""The nodes of each, map, flat_map, filter, peek and project: what becomes of a row does not depend on others."""

from __future__ import annotations

from dataclasses import dataclass

from trident.planning.nodes import Node
from trident.udf.expressions import Expression
from trident.udf.signatures import UserFunction


@dataclass(frozen=True, eq=False, kw_only=True)
class PythonNode(Node):
    """each, map, flat_map, filter or peek with a Python function.

    Attributes:
        kind: which of them.
        function: of the user.
        inputs: the fields that it is called with.
        outputs: the fields that it makes.
        many: whether a call gives an iterable of rows; None: told by the result.
    """

    kind: str
    function: UserFunction
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    many: bool | None = None

    takes_anchors = True

    @property
    def passes_anchors(self) -> bool:  # type: ignore[override]
        # Of the rows that a function makes of whole columns nobody knows which row they come from.
        return not (self.kind == "flat_map" and self.function.vectors)


@dataclass(frozen=True, eq=False, kw_only=True)
class NativeNode(Node):
    """each, map, flat_map or filter with an expression of Spark."""

    kind: str
    expression: Expression
    outputs: tuple[str, ...] = ()

    @property
    def passes_anchors(self) -> bool:  # type: ignore[override]
        # ``*`` would mean the hidden column too.
        return not self.expression.all_fields

    @property
    def one_to_one(self) -> bool:
        """Whether each row certainly gives one row."""
        found = self.expression.analysis
        return self.kind == "map" or (self.kind == "each" and found is not None and not found.generates)


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectNode(Node):
    """Some of the fields."""

    passes_anchors = True
