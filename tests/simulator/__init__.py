"""The production coordinator in a simulated world: see docs/architecture/simulator.md."""
