"""What every state kind shares: names, values, bindings, control records."""
