"""Violations of tests/tree.py that are still in the tree. Never add one. To remove
resolved ones, or after a merge conflict: `python -m tests.tree --update`."""

KNOWN = []
