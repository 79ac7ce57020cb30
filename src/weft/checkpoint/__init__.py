"""Checkpoints: a model <-> files. `native` is Weft's folder; `atomic` is how a file gets there."""
