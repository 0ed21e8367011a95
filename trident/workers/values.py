"""Between Python values and typed Arrow arrays, for steps of a chain; the rule is in ``states.core.typed_values``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from trident.states.core.plain_values import python_values as python_values
from trident.states.core.typed_values import WrongValue as WrongValue
from trident.states.core.typed_values import cut_repr as cut_repr
from trident.states.core.typed_values import to_arrow as to_arrow
from trident.states.core.typed_values import type_text as type_text

Values = Union[list[Any], tuple[Any, ...], Sequence[Any]]
