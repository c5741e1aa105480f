"""Operators on rows: softmax, normalizations, reductions and cross entropy."""
