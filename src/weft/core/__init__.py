"""What every other package uses. Imports nothing of Weft.

errors          WeftError and its subclasses: errors that a user can correct; EngineError
config          Config: validated settings and their messages; TOML and JSON files
registry        pick(table, name, what): the entry of a table, or the list of choices
shapes          shape suffixes of tensor names (x_BTD) and check_shapes
device          device and dtype of a run
memory          memory that this process may still use: machine, control groups, RLIMIT_AS
forward_batch   ForwardBatch: ids, lengths and positions of one forward pass
kv_spec         what an attention layer stores for each token
cpu_limits      CPUs that this process may use: affinity, cgroups
openmp          number of threads, and how they wait for each other
gc_pause        a block of code in which Python collects no garbage
quantized       QuantizedMatrix: weights in 8 or 4 bits with a scale per 32 inputs
"""
