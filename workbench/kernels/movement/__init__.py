"""Operators that move elements: copies, permutations, windows."""
