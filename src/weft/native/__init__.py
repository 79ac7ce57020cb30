"""Kernels in C++, compiled on the machine that runs them: fast on a CPU, and row by row the same.

    simd.h           vectors as wide as the processor has them; exp and tanh
    panels.h         some rows times some outputs; weights as floats, in 8 or in 4 bits
    linear.cpp       x W^T, each result one chain of sums
    table.cpp        rows of a packed weight
    tile.h           some queries meet a tile of keys
    pages.h          where the keys of a call lie
    attention.cpp    who meets which tile
    activation.cpp   SiLU, GELU, sigmoid, ReLU
    norm.cpp         layernorm and rmsnorm
    rows.h           what these offer to a whole layer
    layer.cpp        a layer in one call (nn/compiled.py)
    build.py         sources -> a library in the cache folder
    library.py       the library and its functions; None where there is none
    structs.py       its structures
    packed.py        a weight in the order that panels.h reads
    unpacked.py      the way back, whole or by rows
    activation.py    activations, compiled or torch's
    norm.py          norms

What a row gives never depends on the other rows of the call, on how a prompt is cut, or on the
number of threads. Without a compiler, or with WEFT_NATIVE=0, torch does the work: nn/product.py,
nn/attention/kernels/paged.py and activation.py hold both ways.
"""
