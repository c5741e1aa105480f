"""Pictures of a trace: what each program touches, and how often."""
