"""Greets with a word from the layer, or does what the event asks to test the runtime."""

import json
import logging
import os
import sys
import time

import boto3
from words_package import WORD


def lambda_handler(event, context):
    """Answer of the operation that the event names, a greeting if it names none."""
    match event.get("operation") if isinstance(event, dict) else None:
        case "environment":
            return dict(os.environ)
        case "packages":
            return sorted(name for name in event["names"] if _importable(name))
        case "caller":
            return boto3.client("sts").get_caller_identity()["Arn"]
        case "raise":
            raise LookupError("no such thing")
        case "exit":
            sys.exit(3)
        case "sleep":
            time.sleep(event["s"])
        case "process":
            return os.getpid()
        case "log":
            print("printed")
            logging.getLogger().warning("logged")
        case "metric":
            print(json.dumps(event["line"]))
        case "unserialisable":
            return object()
        case "much":
            print("x" * 300_000)
    return {"said": f"{os.environ['GREETING']} {WORD}", "arn": context.invoked_function_arn}


def _importable(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True
