"""The ledger of the long suites: what each one proves, when it last ran, on which content, and for how long.

``make proof`` runs them one after the other (``python -m tests.proof --help``), ``make proof-status`` lists those that
are older than the code that they cover. The record is ``ledger.json`` beside this file; docs/proof.md is made from it.
"""
