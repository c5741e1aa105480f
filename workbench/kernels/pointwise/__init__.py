"""Operators on elements."""
