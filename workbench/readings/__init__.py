"""Readings of the traces of known operators: what a product reads, and what softmax and attention compute.

`gemm_reads` says which tiles a product's programs read and what hits the cache, `online_softmax` tells the
states of a softmax, `attention` which tiles attention visits and where its bytes go, `attention_gradients`
what its backward keeps and multiplies. All results are plain data.
"""

from workbench.readings import attention, attention_gradients, gemm_reads, online_softmax

__all__ = ["attention", "attention_gradients", "gemm_reads", "online_softmax"]
