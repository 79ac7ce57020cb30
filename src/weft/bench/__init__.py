"""Measurements: workloads by name and seed -> rows of numbers, tables and plots.

attention   kernels and patterns over lengths     measure   in turns; peak memory; the machine
report      tables and plots
"""
