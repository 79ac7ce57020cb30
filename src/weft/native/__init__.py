"""The compiled library: fast on a CPU, and batch-invariant (a row's bits do not depend on the rows,
the chunks of a prompt or the number of threads beside it).

    csrc/                   the C++ sources; weft_native.h is the ABI
    compiler.py             sources -> a library: prebuilt in wheels, or compiled at first use
    library.py              the library and its functions; None where there is none
    packed.py               PackedMatrix: a weight in the order in which the product reads it
    kernels.py              products, norms, activations, dropout, top-k: tensors in, tensors out
    attention_kernels.py    paged attention; attention over short sequences with gradients
    stack_weights.py        descriptions of a whole stack
    compiled_stack.py       CompiledStack: all layers in one call; decode steps; greedy search
    malloc.py               return freed memory to the system
    huge_pages.py           move weights to memory pages of 2 MB
    rename.py               exchange the names of two folders
    contention.py           whether other processes use the CPUs, and how threads wait then

Without a library, or with WEFT_NATIVE=0, the functions of kernels.py compute with torch.
"""
