"""Inputs and outputs of the operations that the state machines call, one module per function. operation = state = use case by name."""
