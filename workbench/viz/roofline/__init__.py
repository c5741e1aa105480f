"""Rooflines, and measured points."""
