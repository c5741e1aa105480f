"""The kernels: tile operators (`tile/`), templated kernels with their invokers (one file an operator family), and
instances. `reference` has the plain torch meaning of each operator.
"""
