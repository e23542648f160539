#!/bin/bash
# The Kubernetes keys of a partition in Secrets Manager and its client CA in Parameter Store. Keys go through files that only this
# run can read: never through arguments, output or a log.
# shellcheck source-path=SCRIPTDIR source=lib.sh
[[ -v exit_codes ]] || . "$(dirname "$0")/lib.sh"
Cluster=""

secret_keys=(client-ca.crt client-ca.key server-ca.crt server-ca.key request-header-ca.crt request-header-ca.key service-account.key service-account.pub)
secret_name() { printf 'autojoin/%s/%s/kubernetes' "$Cluster" "$Partition"; }
client_ca_name() { printf '/autojoin/%s/public/%s/client-ca.crt' "$Cluster" "$Partition"; }
allow_secret="allow secretsmanager:GetSecretValue and secretsmanager:CreateSecret on the secret to the instance profile"

# create_secret FOLDER: from the files of FOLDER, unless it exists; REPLY: created or exists
create_secret() {
  local name
  for name in "${secret_keys[@]}"; do jq -Rs --arg name "$name" '{($name): .}' <"$1/$name"; done | jq -cs add >"$work/secret.json"
  aws_call secretsmanager create-secret --name "$(secret_name)" --description "Kubernetes keys of $Partition in $Cluster" \
    --secret-string "file://$work/secret.json"
  rm -f -- "$work/secret.json"
  case $aws_code in
    "") REPLY=created ;;
    ResourceExistsException) REPLY=exists ;;
    *) fail SecretMissing "creating $(secret_name): $aws_error" "the secret can be made" "$allow_secret; one that is being deleted can be restored" ;;
  esac
}

read_secret() { # FOLDER: one file for each key
  local name
  aws_call secretsmanager get-secret-value --secret-id "$(secret_name)" --query SecretString --output text
  [[ -z $aws_code ]] || fail SecretMissing "reading $(secret_name): $aws_error" "the keys with which $Partition was formed" \
    "restore the secret (aws secretsmanager restore-secret), or $allow_secret; keys of a formed partition are not made anew"
  mkdir -p "$1"
  for name in "${secret_keys[@]}"; do
    jq -j --arg name "$name" '.[$name] // ""' "$work/aws.out" >"$1/$name" 2>/dev/null || true
    grep -q -- '^-----BEGIN ' "$1/$name" || fail SecretMissing "$(secret_name) has no PEM text $name" "a JSON object with ${secret_keys[*]}" \
      "restore the secret's first version; it is never changed"
  done
  rm -f -- "$work/aws.out"
}

publish_client_ca() { # FILE: what kubelets of the partition's other nodes check their API server with; public
  local parameter
  parameter=$(client_ca_name)
  aws_call ssm get-parameter --name "$parameter" --query Parameter.Value --output text
  if [[ -z $aws_code && "$(<"$work/aws.out")" == "$(<"$1")" ]]; then return 0; fi
  aws_call ssm put-parameter --name "$parameter" --type String --overwrite --value "file://$1"
  [[ -z $aws_code ]] || fail ClientCaMissing "publishing $parameter: $aws_error" "the client CA of $Partition in Parameter Store" \
    "allow ssm:GetParameter and ssm:PutParameter on it to the instance profile"
}
