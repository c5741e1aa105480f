"""Layer 3, instances: configurations of the templates that have a name, and what was measured of them."""
