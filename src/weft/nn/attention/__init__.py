"""Attention: who looks at whom, and what they take away.

base       contracts of masks and kernels         settings   heads, pattern, kernel by name
masks      who may see whom, as a description     kernels/   reference, flash, sparse
layer      what all head kinds share              heads      MHA, GQA, MQA      latent   MLA
"""
