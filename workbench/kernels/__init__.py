"""The kernels: tile operators, templated kernels with their invokers, and instances.

`tile/` has the tile operators, every other file is an operator family, and `reference` has the plain torch
meaning of each operator.
"""
