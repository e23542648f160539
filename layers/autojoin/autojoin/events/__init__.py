"""Wire models: what comes in from EventBridge, from the state machines and by hand, and what goes back."""
