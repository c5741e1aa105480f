"""Pictures of code: the source lens, listings, and the widths of loads."""
