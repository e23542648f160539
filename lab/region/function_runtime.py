"""The Lambda runtime of a function in the lab: reads invocations, calls the handler, answers as AWS's Python runtime.

Run by the functions' own Python, never imported: `python function_runtime.py`, standard library only. Its first line of
input says what to load; each later line is an invocation. Answers go to a descriptor of their own, so that a handler
may print what it likes; after each answer a mark line ends that invocation's part of the log.
"""

import base64
import importlib
import io
import json
import logging
import os
import site
import sys
import time
import traceback

RESPONSE_BYTES = 6 * 1024 * 1024
MARK = "\x1e"


class Context:
    """What AWS hands to a handler beside the event."""

    identity = None
    client_context = None

    def __init__(self, invocation, deadline):
        self.aws_request_id = invocation["request_id"]
        self.invoked_function_arn = invocation["arn"]
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = int(os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"])
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.tenant_id = None
        self._deadline = deadline

    def get_remaining_time_in_millis(self):
        """Milliseconds until the function's time-out."""
        return max(0, int((self._deadline - time.time()) * 1000))


class Formatter(logging.Formatter):
    """The format of AWS's own handler on the root logger."""

    converter = time.gmtime
    request_id = ""

    def format(self, record):
        record.aws_request_id = Formatter.request_id
        return super().format(record)


def failure(error, request_id, error_type=None, message=None):
    """The body of an invocation that failed, with the frames of the function's code only."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<frozen")]
    return {
        "errorMessage": str(error) if message is None else message,
        "errorType": error_type or type(error).__name__,
        "requestId": request_id,
        "stackTrace": [] if error_type else traceback.format_list(mine),
    }


def load(start):
    """The handler, or the failure body that each invocation of this environment gets."""
    roots = [start["code"]]
    for layer in reversed(start["layers"]):
        python = os.path.join(layer, "python")
        lib = os.path.join(python, "lib")
        versions = sorted(os.listdir(lib)) if os.path.isdir(lib) else []
        roots += [os.path.join(lib, version, "site-packages") for version in versions]
        roots.append(python)
    sys.path[:] = [root for root in roots if os.path.isdir(root)] + [p for p in sys.path if p != os.path.dirname(__file__)]
    for root in roots[1:]:
        if root.endswith("site-packages"):
            site.addsitedir(root)
    module_name, _, function_name = start["handler"].rpartition(".")
    module_name = module_name.replace("/", ".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        return None, failure(error, "", "Runtime.ImportModuleError", f"Unable to import module '{module_name}': {error}")
    except SyntaxError as error:
        where = f"Syntax error in module '{module_name}': {error}"
        return None, failure(error, "", "Runtime.UserCodeSyntaxError", where)
    except Exception as error:
        traceback.print_exc()
        return None, failure(error, "")
    if not hasattr(module, function_name):
        missing = f"Handler '{function_name}' missing on module '{module_name}'"
        return None, failure(AttributeError(missing), "", "Runtime.HandlerNotFound")
    return getattr(module, function_name), None


def invoke(handler, event, context):
    """The answer of one invocation: {"result": …} or {"raised": …}."""
    request_id = context.aws_request_id
    try:
        result = handler(event, context)
    except Exception as error:
        body = failure(error, request_id)
        print(f"[ERROR] {body['errorType']}: {body['errorMessage']}\nTraceback (most recent call last):")
        print("".join(body["stackTrace"]), end="")
        return {"raised": body}
    try:
        if isinstance(result, bytes):
            result = base64.b64encode(result).decode()
        text = json.dumps(result)
    except (TypeError, ValueError) as error:
        return {"raised": failure(error, request_id, "Runtime.MarshalError", f"Unable to marshal response: {error}")}
    if len(text) > RESPONSE_BYTES:
        too_large = f"Response payload size exceeded maximum allowed payload size ({RESPONSE_BYTES} bytes)."
        return {"raised": {"errorMessage": too_large, "errorType": "Function.ResponseSizeTooLarge"}}
    return {"result": result}


def main():
    """Load once, then answer one invocation a line until the lab closes the input."""
    answers = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8", newline="\n")
    requests = sys.stdin
    sys.stdin = io.StringIO()
    logged = logging.StreamHandler(sys.stdout)
    logged.setFormatter(Formatter("[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s", "%Y-%m-%dT%H:%M:%S"))
    logging.getLogger().addHandler(logged)

    def answer(message, mark):
        answers.write(json.dumps(message) + "\n")
        answers.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout.write(f"{MARK}{mark}\n")
        sys.stdout.flush()

    handler, broken = load(json.loads(requests.readline()))
    answer({"raised": broken} if broken else {"ready": True}, "init")
    if broken:
        return
    for line in iter(requests.readline, ""):
        invocation = json.loads(line)
        if invocation.get("trace_id"):
            os.environ["_X_AMZN_TRACE_ID"] = invocation["trace_id"]
        else:
            os.environ.pop("_X_AMZN_TRACE_ID", None)
        Formatter.request_id = invocation["request_id"]
        context = Context(invocation, time.time() + invocation["timeout_s"])
        answer(invoke(handler, invocation["event"], context), invocation["request_id"])


main()
