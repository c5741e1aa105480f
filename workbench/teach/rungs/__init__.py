"""The rungs that lessons climb on the way to a shipped kernel."""
