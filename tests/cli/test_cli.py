"""The command: what it prints, its exit codes, and that docs/cli.md shows exactly that."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from autojoin import errors
from cli.__main__ import parser, run
from cli.view import AGAIN, PERMISSION, advice
from tests.fakes.account import Account, empty_account, hand_made

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```bash\ncli/autojoin (.*?)\n```\n\n```text\n(.*?)```", TEXT, re.DOTALL)
ADOPT = "adopt demo-rp1-masters --cluster demo --partition rp1 --role rp"
ENROLL = "enroll demo-rp1-masters --cluster demo --partition rp1 --role rp"


def said(words: str, account: Account) -> tuple[int, str, str]:
    """Exit code, output and error output of the command."""
    out, err = io.StringIO(), io.StringIO()
    code = run(shlex.split(words), lambda stack: account, out, err)  # type: ignore[arg-type,return-value]
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("words", "arranged"), [(ADOPT, hand_made), (ENROLL, empty_account)])
def test_without_apply_it_only_shows_and_with_apply_it_does_and_then_nothing_is_left(words: str, arranged: Any) -> None:
    account = arranged()

    code, shown, _ = said(words, account)
    assert (code, account.writes) == (0, [])
    assert shown.endswith("nothing was changed; --apply does it\n")

    code, done, _ = said(f"{words} --apply", account)
    assert code == 0
    assert re.findall(r"^done: +(.*)$", done, re.M) == re.findall(r"^would: +(.*)$", shown, re.M)

    code, again, _ = said(f"{words} --apply", account)
    assert code == 0
    assert again.endswith("nothing to do\n")


def test_a_refusal_says_what_was_seen_expected_and_is_to_do() -> None:
    code, out, err = said(ADOPT, empty_account())

    assert (code, out) == (1, "")
    assert err == (
        "refused: Refused\n"
        "  seen:     group demo-rp1-masters has no instances in service\n"
        "  expected: instances that were made members of the cluster by hand\n"
        "  to do:    enroll the empty group: autojoin enroll demo-rp1-masters\n"
    )


def test_json_is_one_object_with_what_was_done() -> None:
    account = hand_made()
    _, planned, _ = said(f"{ADOPT} --json", account)
    _, applied, _ = said(f"{ADOPT} --json --apply", account)

    before, after = json.loads(planned), json.loads(applied)
    assert [c["change"] for c in before["changes"]] == [c["change"] for c in after["changes"]]
    assert {c["done"] for c in before["changes"]} == {False}
    assert {c["done"] for c in after["changes"]} == {True}
    assert after["refused"] is None


def test_json_of_a_refusal() -> None:
    code, out, err = said(f"{ADOPT} --json", empty_account())

    assert (code, err) == (1, "")
    assert json.loads(out)["refused"]["error"] == "Refused"


def test_a_change_that_is_refused_half_way_shows_what_was_done() -> None:
    account = hand_made()
    account.put_record = lambda record, owner: (_ for _ in ()).throw(errors.AwsThrottled("slow", "fast", "x"))  # type: ignore[method-assign]

    code, out, _ = said(f"{ADOPT} --json --apply", account)

    assert code == 1
    assert [c["done"] for c in json.loads(out)["changes"]][:3] == [True, True, False]
    assert json.loads(out)["refused"]["to_do"] == AGAIN


def test_what_aws_refuses_is_about_the_operator_s_permissions() -> None:
    assert advice(errors.AwsRefused("a", "b", "c")) == PERMISSION


@pytest.mark.parametrize("words", ["", "adopt", "enroll g", "enroll g --cluster c --partition p --role etcd", "leave g"])
def test_usage_is_exit_code_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        said(words, empty_account())

    assert ended.value.code == 2
    assert "usage: autojoin" in capsys.readouterr().err


def test_the_ports_are_those_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    from cli.ports import ports_of

    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        import boto3

        template = {
            "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}},
            "Outputs": {"TableName": {"Value": "mine-nodes"}, "CommandLogGroup": {"Value": "/mine"}},
        }
        boto3.client("cloudformation").create_stack(StackName="mine", TemplateBody=json.dumps(template))

        settings = ports_of("mine").settings

    names = ("table_name", "document_prefix", "command_log_group")
    assert [settings.get(name) for name in names] == ["mine-nodes", "mine", "/mine"]


@pytest.mark.parametrize("program", [[sys.executable, "-m", "cli"], ["cli/autojoin"]], ids=["module", "shim"])
def test_the_program_runs_and_refuses_without_credentials(program: list[str], tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}

    ended = subprocess.run([*program, "adopt", "x"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 1
    assert "boto3: no region" in ended.stderr


# -- docs/cli.md ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "shown"), EXAMPLES)
def test_the_page_shows_what_the_command_says(words: str, shown: str) -> None:
    account = hand_made() if words.startswith("adopt") else empty_account()

    _, out, err = said(words, account)

    assert out + err == shown


def test_the_page_shows_each_command() -> None:
    assert {words.split()[0] for words, _ in EXAMPLES} == {"adopt", "enroll"}


def test_every_command_on_the_page_is_one() -> None:
    for words in re.findall(r"^cli/autojoin (.*)$", TEXT, re.MULTILINE):
        parser().parse_args(shlex.split(words))


def test_the_page_names_every_option() -> None:
    choices = next(a for a in parser()._actions if isinstance(a.choices, dict)).choices
    assert isinstance(choices, dict)
    options = {o for p in choices.values() for a in p._actions for o in a.option_strings if o.startswith("--")} - {"--help"}

    assert options == set(re.findall(r"^\| `(--[a-z-]+)", TEXT, re.MULTILINE))


def test_the_page_names_every_permission_that_the_command_needs() -> None:
    sources = [
        ROOT / "layers/autojoin/autojoin/adapters" / f"{n}.py" for n in ("operator", "autoscaling", "ssm", "parameters", "dynamodb", "ec2")
    ]
    used = {a for s in sources for a in re.findall(r'"([a-z0-9]+:[A-Z]\w+)"', s.read_text(encoding="utf-8"))}

    named = set(re.findall(r"`([a-z0-9]+:[A-Z]\w+)`", TEXT))

    assert set(re.findall(r'"([a-z0-9]+:[A-Z]\w+)"', sources[0].read_text(encoding="utf-8"))) <= named
    assert named <= used
