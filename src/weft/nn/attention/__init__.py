"""Attention layers: x_BTD -> y_BTD. The table ATTENTION maps `kind` to the class of the heads.

base             contracts: Mask, Kernel, AttentionCall, AttentionContext, AttentionSlot
config           settings: heads, pattern, kernel
heads            the table ATTENTION
layer            the base class: cache, positions, choice of the kernel
grouped_query    MHA, GQA, MQA
latent           MLA, expanded and absorbed
paged_attention  variable-length attention over the pages of a KV cache
masks/           which query may attend to which key, as descriptions
kernels/         reference, flash, short, tiled, sparse, flex
"""
