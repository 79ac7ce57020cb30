"""Caches: they store the rows that attention layers declare (core/kv.py) and know nothing else
about them."""
