"""The `aws` of the bench: Parameter Store and Secrets Manager as two folders beside the nodes', with AWS's words for refusals.

Parameters and secrets are files, their names with % for each slash. Every call is noted in aws.log; an operation whose name
(ssm:GetParameter) stands in the file `denied` is refused.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    folder = Path(os.environ["AUTOJOIN_ROOT"]).parents[1]
    with (folder / "aws.log").open("a", encoding="utf-8") as log:
        log.write(" ".join(argv) + "\n")
    service, operation = argv[0], "".join(word.title() for word in argv[1].split("-"))
    options = dict(itertools.pairwise(argv))

    def refuse(code: str) -> int:
        print(f"\nAn error occurred ({code}) when calling the {operation} operation: by the bench", file=sys.stderr)
        return 254

    denied = folder / "denied"
    if denied.exists() and f"{service}:{operation}" in denied.read_text(encoding="utf-8").split():
        return refuse("AccessDeniedException")
    store = folder / ("parameters" if service == "ssm" else "secrets")
    path = store / options.get("--name", options.get("--secret-id", "")).replace("/", "%")
    if operation in ("GetParameter", "GetSecretValue"):
        if not path.exists():
            return refuse("ParameterNotFound" if service == "ssm" else "ResourceNotFoundException")
        print(path.read_text(encoding="utf-8").rstrip("\n"))
        return 0
    if path.exists() and operation == "CreateSecret":
        return refuse("ResourceExistsException")
    if path.exists() and "--overwrite" not in argv:
        return refuse("ParameterAlreadyExists")
    value = options["--value" if service == "ssm" else "--secret-string"]
    path.write_text(Path(value.removeprefix("file://")).read_text(encoding="utf-8"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
