"""Benchmarks: workloads by name and seed -> rows of numbers, tables and plots.

attention    attention kernels over patterns and lengths
train        a training step beside transformers' Marian and torch.nn.Transformer
switches     one recipe, trained with one setting changed at a time
engine       generation by Weft's engine and its peers
serve        the HTTP server beside llama-server and vLLM
latency      a stream beside a long prompt: inter-token latency, time to first token
busy         the same beside other processes that use the CPUs
scheduling   the scheduler without a model
translate    translation by Weft, CTranslate2 and transformers
kernels      the compiled kernels beside torch
peers/       the programs that Weft is compared with, and how to run them
comparison   the same requests to several systems, alternately -> rows, ratios, goals
measure      seconds measured alternately, peak memory in child processes, the machine
plots        tables and plots
"""
