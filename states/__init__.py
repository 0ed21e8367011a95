"""States: the tables and maps that batches are committed to, from staging to snapshots."""

from trident.states.core.kinds import register
from trident.states.delta.append import APPEND
from trident.states.delta.beside import DEAD_LETTERS, MESSAGES
from trident.states.keyed.delta_map import KEYED
from trident.states.maps.memory_map import MEMORY
from trident.states.maps.own_kinds import MAP, USER

# Whoever loads anything of states knows every kind that a stored file may name. Recognised in this order.
register(APPEND, KEYED, MEMORY, MAP, USER, DEAD_LETTERS, MESSAGES)
