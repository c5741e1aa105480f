"""Rooflines, and figures of measured points."""
