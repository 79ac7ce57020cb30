"""Layers.

config                settings of the layers below; those of positions and attention are there
linear                Linear, with a range of outputs
embedding             token ids -> vectors
positions/            position encodings: sinusoidal, learned, Shaw, T5, ALiBi, RoPE
attention/            attention layers, masks and kernels
norm                  LayerNorm and RMSNorm
feedforward           MLP and gated MLP
mixture_of_experts    router and experts
dropout               dropout by random bytes
block                 one layer of a stack: residual paths around attention and feed-forward
lm_head               LM head, and BERT's pooler
memoryless            the Parameter of a packed weight
packed_modules        the packed counterparts of the modules above, for inference
"""
