"""The observer: what happened in a lab, what is left, and whether every invariant held."""
