#!/bin/bash
# What the node scripts share: the result line, failures by class, parameters, instance metadata, API calls, addresses.
# The renderer puts this text, and that of the other parts lib-*.sh, in place of the line that sources it, so each document
# carries its own copy of one original.
#
# Contract of every script: the last line on stdout is one JSON object; everything else goes to stderr; the exit code names
# the error class (documents/exit_codes.json). Every path is under AUTOJOIN_ROOT, which is empty on a real node.
set -Eeuo pipefail

declare -Ar exit_codes=([ScriptFailed]=1 [InvalidParameter]=10 [BinariesMissing]=11 [ClientCaMissing]=12 [SubnetNotAdjacent]=13 [ApiUnreachable]=14 [Busy]=15 [UnitFailed]=16 [PortInUse]=17 [NodeNotReady]=20 [RoutesMissing]=21 [CanaryFailed]=22 [NodeRefused]=23 [EtcdDataForeign]=24 [QuorumLost]=25 [SecretMissing]=26 [ClusterIdMismatch]=27 [PeersNotSeen]=28)

root="${AUTOJOIN_ROOT:-}"
imds_endpoint="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}"
imds_endpoint="${imds_endpoint%/}"
run_dir="$root/run/autojoin"
step="${0##*/}" # each script sets its own name
Partition="" InstanceId="" Zone="" # parameters that this part reads; set by 'parameter'
work=""         # this run's own folder, gone at exit
reported=""     # set once the result line is out
failed_at=""

exec 3>&1 1>&2

log() { printf '%s\n' "$*" >&2; }

# Hooks that a script may define anew: leave nothing behind at any exit; put back what this run changed when it fails.
cleanup() { :; }
undo() { :; }
undone='{}' # what undo did, as JSON, for the result line

# json_list [TEXT...]: the texts as a JSON array, with the jq 1.5 of older images too.
json_list() { printf '%s\n' "$@" | jq -cRn '[inputs | select(length > 0)]'; }

# succeed [JSON OBJECT]: print the result line and end.
succeed() {
  cleanup
  local more="${1-}"
  [[ -n $more ]] || more='{}'
  jq -cn --arg step "$step" --argjson more "$more" '{ok: true, step: $step} + $more' >&3
  reported=yes
  exit 0
}

# fail CLASS SEEN EXPECTED ADVICE: undo, print the result line and end with the exit code of the class.
# Never call it inside a command substitution.
fail() {
  trap - ERR
  set +e
  undo
  cleanup
  jq -cn --arg step "$step" --arg error "$1" --arg seen "$2" --arg expected "$3" --arg todo "$4" --argjson undone "$undone" \
    '{ok: false, step: $step, error: $error, seen: $seen[0:900], expected: $expected[0:400], todo: $todo[0:400]}
     + (if $undone == {} then {} else {undone: $undone} end)' >&3
  reported=yes
  exit "${exit_codes[$1]}"
}

on_exit() {
  local code=$?
  if [[ -z $reported ]]; then
    fail ScriptFailed "${failed_at:-stopped by a signal} (exit $code)" "no unexpected failure" \
      "read the command's stderr; the step may be repeated as it is"
  fi
  [[ -z $work ]] || rm -rf -- "$work"
}
trap 'failed_at="line $LINENO: ${BASH_COMMAND:0:200}"' ERR
trap on_exit EXIT
trap 'exit 1' HUP INT TERM

# parameter NAME PATTERN MEANING [DEFAULT]: check SSM_<NAME> again and set the variable NAME.
# The renderer reads these lines to write the document's parameters, so pattern and default exist once.
parameter() {
  local variable="SSM_$1"
  local value="${!variable-${4-}}"
  if [[ ! -v $variable && $# -lt 4 ]]; then
    fail InvalidParameter "$1 is not given" "$3" "send the command with the parameter $1"
  fi
  if [[ ! $value =~ $2 || $value == *..* ]]; then
    fail InvalidParameter "$1 is '$value'" "$3, as $2" "correct the parameter $1"
  fi
  declare -g "$1=$value"
}

# single_run NAME: one run at a time; the lock ends with this process, however it ends.
single_run() {
  mkdir -p "$run_dir"
  exec 9>"$run_dir/$1.lock"
  flock -w 3 9 || fail Busy "another run holds $run_dir/$1.lock" "one run at a time" "repeat the step a little later"
  umask 077
  work=$(mktemp -d "$run_dir/$step.XXXXXX")
}

# remaining SECONDS: begin a wait of at most so many seconds, and never beyond the script's own limit (limit_s).
# in_time is true until then and paces the loop. Used as: wait_for 30; while ! ready; do in_time || fail …; done
limit_s="${AUTOJOIN_LIMIT_S:-0}"
wait_for() {
  wait_until=$((SECONDS + $1))
  if ((limit_s > 0 && wait_until > limit_s)); then wait_until=$limit_s; fi
}
in_time() {
  ((SECONDS < wait_until)) || return 1
  sleep 0.3
}

# Instance metadata, version 2 only.
imds_open() {
  imds_token=$(curl -sSf -m 5 --noproxy '*' -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 900' \
    "$imds_endpoint/latest/api/token") || imds_token=""
  [[ -n $imds_token ]]
}
imds() { curl -sSf -m 5 --noproxy '*' -H "X-aws-ec2-metadata-token: $imds_token" "$imds_endpoint/latest/meta-data/$1"; }

# own_instance INSTANCE_ID: sets own[address], own[subnet] (a CIDR) and own[region]; refuses to act for another instance.
declare -A own=()
own_instance() {
  local id=""
  if ! imds_open || ! id=$(imds instance-id); then
    fail ScriptFailed "instance metadata at $imds_endpoint does not answer" "IMDSv2 answers on the instance" \
      "enable the metadata endpoint (HttpTokens required is fine, hop limit at least 1)"
  fi
  [[ $id == "$1" ]] || fail InvalidParameter "InstanceId is $1 but this instance is $id" "the instance's own id" \
    "send the command to the instance that it names"
  own[address]=$(imds local-ipv4)
  own[mac]=$(imds mac)
  own[subnet]=$(imds "network/interfaces/macs/${own[mac]}/subnet-ipv4-cidr-block")
  own[region]=$(imds placement/region)
}

# aws_call ARGUMENT...: the aws CLI in this region; what it prints is in $work/aws.out. Sets aws_code (AWS's error code, empty
# when it worked) and aws_error. What is no answer of the service is tried again for 20 seconds, then ApiUnreachable.
aws_call() {
  wait_for 20
  while true; do
    aws_code="" aws_error=""
    if aws "$@" --region "${own[region]}" >"$work/aws.out" 2>"$work/aws.err"; then return 0; fi
    aws_error=$(tr '\n' ' ' <"$work/aws.err" | head -c 300)
    if [[ $aws_error =~ \(([A-Za-z]+)\)\ when\ calling ]]; then aws_code=${BASH_REMATCH[1]}; fi
    case $aws_code in
      "" | *Throttl* | *Internal* | *Unavailable*) ;;
      *) return 0 ;;
    esac
    in_time || fail ApiUnreachable "aws $1 $2: $aws_error" "the service answers" \
      "check the route to the endpoint of $1 and the instance profile"
  done
}

# request METHOD URL [JSON]: sets http_status (000 when nothing answered), http_body and http_error.
request() {
  local answer
  local -a data=()
  if [[ $# -ge 3 ]]; then
    printf '%s' "$3" >"$work/request.json"
    data=(-H 'Content-Type: application/json' --data-binary "@$work/request.json")
  fi
  answer=$(curl -sS -m 10 --connect-timeout 3 --noproxy '*' -X "$1" "${data[@]}" -w '\n%{http_code}' "$2" 2>"$work/curl.err") || true
  http_status="${answer##*$'\n'}"
  http_body="${answer%$'\n'*}"
  http_error=$(head -c 200 "$work/curl.err")
}

api_url() { printf 'http://api.%s.%s:8080' "$1" "$Zone"; }

# api PARTITION METHOD PATH [JSON]: one API call; no answer and 5xx are tried again for 15 seconds, then ApiUnreachable.
api() {
  local url
  url="$(api_url "$1")$3"
  wait_for 15
  while true; do
    request "$2" "$url" "${@:4}"
    [[ $http_status == 000 || $http_status == 5?? ]] || return 0
    in_time || fail ApiUnreachable "$2 $url: ${http_error:-HTTP $http_status}" "the API server of partition $1 answers" \
      "check the partition's API server, its record in $Zone and port 8080 in the security groups"
  done
}

# api_healthy PARTITION...: every one answers /healthz with ok.
api_healthy() {
  local partition
  for partition in "$@"; do
    api "$partition" GET /healthz
    [[ $http_status == 200 ]] || fail ApiUnreachable "GET $(api_url "$partition")/healthz: HTTP $http_status ${http_body:0:200}" \
      "every listed partition is healthy" "repair partition $partition first; nothing was changed on this node"
  done
}

# not_healthy PARTITION...: sets waiting to those that do not answer /healthz with ok; all are asked at once.
waiting=()
not_healthy() {
  local partition
  waiting=()
  for partition in "$@"; do
    [[ $(curl -s -m 4 --noproxy '*' "$(api_url "$partition")/healthz" 2>/dev/null || true) == ok ]] || touch "$work/silent.$partition" &
  done
  wait
  for partition in "$@"; do
    [[ ! -e $work/silent.$partition ]] || waiting+=("$partition")
    rm -f -- "$work/silent.$partition"
  done
}

# unexpected WHAT: an API answer that no rule of ours foresees.
unexpected() {
  fail ScriptFailed "$1: HTTP $http_status ${http_body:0:300}" "an answer that this step knows" "look at the API server's log"
}

# Addresses. Results in REPLY; no subshells, since lists can be long.
address_number() {
  local a b c d
  IFS=. read -r a b c d <<<"$1"
  REPLY=$(((10#$a << 24) + (10#$b << 16) + (10#$c << 8) + 10#$d))
}
address_in() { # ADDRESS CIDR
  [[ $1 =~ ^[0-9]+(\.[0-9]+){3}$ && $2 =~ ^[0-9]+(\.[0-9]+){3}/[0-9]+$ ]] || return 1
  local mask=$(((0xffffffff << (32 - ${2#*/})) & 0xffffffff)) number
  address_number "$1"
  number=$REPLY
  address_number "${2%/*}"
  (((number & mask) == (REPLY & mask)))
}
cidr_in() { # INNER OUTER
  [[ $1 == */* ]] && ((${1#*/} >= ${2#*/})) && address_in "${1%/*}" "$2"
}

# read_node: sets node[uid], node[ready] (True, False, Unknown, absent), node[tainted] (yes, no) and node[pods] from the RP.
declare -A node=()
read_node() {
  local uid ready tainted pods
  node=([uid]="" [ready]=absent [tainted]=no [pods]="")
  api "$Partition" GET "/api/v1/nodes/$InstanceId"
  [[ $http_status != 404 ]] || return 0
  [[ $http_status == 200 ]] || unexpected "reading Node $InstanceId"
  IFS='|' read -r uid ready tainted pods < <(jq -r '
    [.metadata.uid,
     ([.status.conditions[]? | select(.type == "Ready") | .status] + ["Unknown"])[0],
     (if any(.spec.taints[]?; .key == "node.kubernetes.io/not-ready" or .key == "node.kubernetes.io/unreachable")
      then "yes" else "no" end),
     (.spec.podCIDR // "")] | join("|")' <<<"$http_body")
  node=([uid]="$uid" [ready]="$ready" [tainted]="$tainted" [pods]="$pods")
}
node_seen() { printf "Node %s: ready=%s, not-ready taint=%s, pod CIDR '%s'" "$InstanceId" "${node[ready]}" "${node[tainted]}" "${node[pods]}"; }
pods_in_range() { # POD_CIDR OF THE PARTITION
  cidr_in "${node[pods]}" "$1" || fail NodeNotReady "$(node_seen)" "a pod CIDR inside $1" \
    "make pod_cidr of the declared partition $Partition equal to --cluster-cidr of its controller-manager"
}

# The units that a script is about, in starting order: a worker's unless it says otherwise. Those in held_units wait in their
# ExecStartPre until their peers answer; as long as one does not (peers_answer is empty), waiting is as good as being active.
our_units=(arktos-kubelet arktos-flanneld arktos-kube-proxy)
held_units=()
peers_answer=""
may_wait() { [[ " ${held_units[*]} " == *" $1 "* ]]; }
unit_waits() { may_wait "$1" && [[ $(systemctl show -p SubState --value "$1.service" 2>/dev/null) == start-pre ]]; }
unit_good() { [[ $(unit_state "$1") == active ]] || { [[ -z $peers_answer ]] && unit_waits "$1"; }; }
unit_state() { systemctl is-active "$1.service" 2>/dev/null || true; }

# fail_if_broken UNIT: count the looks at which the unit was not active; ten of them in one run are a failure of the unit.
declare -A not_active=()
fail_if_broken() {
  local state
  state=$(unit_state "$1")
  if [[ $state == active ]] || unit_waits "$1"; then return 0; fi
  not_active[$1]=$((${not_active[$1]:-0} + 1))
  if [[ $state == failed ]] || ((${not_active[$1]} >= 10)); then
    fail UnitFailed "$1 is $state: $(last_log "$1")" "$1 stays active" "read 'journalctl -u $1' on the node"
  fi
}
all_good() {
  local unit
  for unit in "${our_units[@]}"; do unit_good "$unit" || return 1; done
}
await_units() { # until all of them are good, for a short while
  local unit
  for unit in "${our_units[@]}"; do
    wait_for 20
    until unit_good "$unit"; do
      fail_if_broken "$unit"
      in_time || fail UnitFailed "$unit is $(unit_state "$unit"): $(last_log "$unit")" "$unit is active" \
        "read 'journalctl -u $unit' on the node; join it again if the unit is absent"
    done
  done
}
last_log() { journalctl -u "$1.service" -n 3 --no-pager 2>/dev/null | tail -c 500 | tr '\n' ' ' || true; }

# clean_cni POD_CIDR: remove what an earlier life of this node left of its pod network: configuration, allocations, the bridge
# with its old address, routes inside the pod CIDR, flannel's lease.
clean_cni() {
  rm -rf -- "$root"/etc/cni/net.d/* "$root/var/lib/cni" "$root/run/flannel/subnet.env"
  local link rest destination
  for link in cni0 flannel.1; do
    if ip link show "$link" >/dev/null 2>&1; then ip link delete "$link"; fi
  done
  [[ -n $1 ]] || return 0
  while read -r destination rest; do
    if [[ $destination == */* ]] && cidr_in "$destination" "$1"; then
      log "removing route $destination $rest"
      ip -4 route del "$destination" || log "route $destination was gone"
    fi
  done < <(ip -4 route show)
}
