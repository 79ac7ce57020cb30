"""Position encodings. The table POSITIONS maps `kind` to the class that serves one stack.

base            the contract: Position, Bias; kind none
config          settings of every kind, PositionShape
encodings       the table POSITIONS
sinusoidal      sinusoids added to the embedding, any length
learned         a trained table added to the embedding, up to max_len
shaw            learned distance vectors, multiplied by the query
t5_bias         a learned value per bucket of distances (kind bucketed)
alibi           a fixed slope per head
rotary          RoPE: queries and keys rotated
rope_scaling    RoPE for sequences longer than those of training
position_table  caches of values that depend on positions alone
"""
