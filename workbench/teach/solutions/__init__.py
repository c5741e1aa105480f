"""The solutions: each module's docstring explains, in Markdown; its code is what a learner writes."""
