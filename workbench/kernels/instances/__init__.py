"""Layer 3, instances: named configurations of the templates, and measurements of them."""
