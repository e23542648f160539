"""Fails by name, always."""


class QuorumAtRisk(Exception):
    """An error of the application's own."""


def lambda_handler(event, context):
    """Print the event, then raise."""
    print("got", event)
    raise QuorumAtRisk("two of three members are healthy")
