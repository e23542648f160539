"""One function per operation: (command, ports) -> result. Each is safe to call twice, and after a crash in between."""
