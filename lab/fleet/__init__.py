"""The fleet: instances as folders with real processes, groups and their hooks, SSM agents, metadata, names."""
