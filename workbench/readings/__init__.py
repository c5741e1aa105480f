"""Readings of the traces of known operators: the tiles of a GEMM, and the states of softmax and attention.

`gemm_reads`: the tiles that a GEMM's programs read, and their cache hits. `online_softmax`: the states of a
softmax. `attention`: the tiles that attention visits, and the bytes that it moves. `attention_gradients`: the
tiles and the products of its backward. All results are plain data.
"""

from workbench.readings import attention, attention_gradients, gemm_reads, online_softmax

__all__ = ["attention", "attention_gradients", "gemm_reads", "online_softmax"]
