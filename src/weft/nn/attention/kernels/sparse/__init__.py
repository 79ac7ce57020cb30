"""Sparse attention: the cost is that of the tiles that the mask does not leave empty.

tiles      a mask split by the steps between its keys -> tiles of queries and the keys they need
schedule   tiles -> batched calls of the fused kernel, cached on the mask
kernel     runs a schedule, forward and backward
"""
