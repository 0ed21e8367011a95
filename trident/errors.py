"""The errors of this framework, under the name that users import them by.

The tree is drawn and defined in ``coordinators/errors.py``: the coordinator
raises them too, and it may not import ``trident``.
"""

from trident.coordinators import errors as _tree
from trident.coordinators.errors import *  # noqa: F403 (all of them)

__all__ = [
    name for name, value in vars(_tree).items() if isinstance(value, type) and issubclass(value, _tree.TridentError)
]
