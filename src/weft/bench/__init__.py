"""Measurements: workloads by name and seed -> rows of numbers, tables and plots.

The files:
    attention   kernels and patterns over lengths
    train       a training step beside transformers' Marian and torch's own
    measure     seconds in turns, peak memory in children, the machine
    report      tables and plots
"""
