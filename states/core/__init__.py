"""The parts that all kinds of state share: names, values, bindings, control records."""
