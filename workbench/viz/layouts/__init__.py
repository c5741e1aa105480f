"""Pictures of layouts: who holds which element, and what a request of a warp costs."""
