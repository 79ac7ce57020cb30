"""Measurements: workloads by name and seed -> rows of numbers, tables and plots.

The files:
    attention   kernels and patterns over lengths
    train       a training step beside transformers' Marian and torch's own
    switches    one recipe, trained with one setting changed at a time
    engine      prompts through Weft's engine and its peers
    kernels     the compiled kernels beside torch
    scheduling  the scheduler without a model
    translate   sources through Weft, CTranslate2 and transformers
    peers/      the programs that Weft is measured against, and how to talk to them
    turns       the same requests to several systems, round by round -> rows and ratios
    goals       which ratios are as they should be
    measure     seconds in turns, peak memory in children, the machine
    report      tables and plots of attention
    bars        tables and plots of systems side by side
"""
