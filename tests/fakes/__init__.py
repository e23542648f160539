"""Fakes at the edge: the world as our ports see it, on virtual time."""
