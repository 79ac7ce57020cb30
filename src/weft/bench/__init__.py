"""Measurements: workloads by name and seed -> rows of numbers, tables and plots.

The files:
    attention   kernels and patterns over lengths
    measure     seconds in turns, peak memory in children, the machine
    report      tables and plots
"""
