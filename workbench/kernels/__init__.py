"""Kernels: tile operators, templated kernels with their invokers, and instances.

`tile/` has the tile operators, `instances/` the configurations, and `choosing/` the choice among them. The
other folders are families of operators. `reference` has the meaning of each operator in plain torch.
"""
