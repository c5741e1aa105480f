"""Pictures of matrix products: tiles, launch orders, waves, instances and fusion."""
