#!/bin/bash
# Say what a master that was made by hand is: its etcd, API server, ranges, Nodes and keys. Changes nothing, unless it is told to
# put the keys into Secrets Manager, where they are never changed once they are there.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-secret.sh
. "$(dirname "$0")/lib-secret.sh"
step=inspect
((limit_s > 0)) || limit_s=60
EtcdUrl="" CertDir="" Store=""

parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance'
parameter EtcdUrl '^(http://[a-z0-9.-]{1,255}:[0-9]{1,5})?$' 'client URL of the etcd of this master; empty for http://<own address>:2379' ''
parameter CertDir '^/[A-Za-z0-9_./-]{1,200}$' 'folder with the CAs and the service-account key of this master' '/var/run/kubernetes'
parameter Cluster '^([a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?)?$' 'name of the Arktos cluster; needed with Store' ''
parameter Partition '^([a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?)?$' 'id of the partition; needed with Store' ''
parameter Store '^(yes|no)$' 'yes: put the keys into Secrets Manager unless they are there, and publish the client CA' 'no'

longest_list=100 # Nodes in the answer: Run Command cuts it at 24,000 characters

# ---- what runs here ----------------------------------------------------------------------------------------------------
# find_flags PROCESS: sets flags to the arguments of the process, or where it does not run, of the unit that would start it.
find_flags() {
  local folder line
  local -a words
  flags=()
  for folder in /proc/[0-9]*; do
    mapfile -d '' -t words 2>/dev/null <"$folder/cmdline" || continue
    is_process "$1" "${words[@]:0:6}" || continue
    if [[ -n $root ]] && ! grep -qzxF "AUTOJOIN_ROOT=$root" "$folder/environ" 2>/dev/null; then continue; fi
    flags=("${words[@]}")
    return 0
  done
  while read -r line; do
    read -r -a words <<<"${line#ExecStart=}"
    if is_process "$1" "${words[@]:0:6}"; then flags=("${words[@]}"); fi
  done < <(cat "$root"/etc/systemd/system/*.service 2>/dev/null | grep '^ExecStart=')
}
is_process() { # NAME WORD...: one of the first words is the name, or a path that ends with it
  local name=$1 word
  shift
  for word in "$@"; do
    [[ $word != "$name" && $word != */"$name" ]] || return 0
  done
  return 1
}
flag() { # NAME: the value of a flag in flags, or nothing
  local word
  for word in "${flags[@]}"; do
    [[ $word != "--$1="* ]] || printf '%s' "${word#*=}"
  done
}

# ---- etcd and API ------------------------------------------------------------------------------------------------------
read_etcd() {
  local member version
  wait_for 15
  while true; do
    request POST "$EtcdUrl/v3/cluster/member/list" '{}'
    [[ $http_status != 200 ]] || break
    in_time || fail ApiUnreachable "$EtcdUrl: ${http_error:-HTTP $http_status}" "etcd of this master answers" "name its client URL in the parameter EtcdUrl"
  done
  etcd=$(jq -c '{cluster_id: .header.cluster_id, members: [.members[]? | {id: .ID, name: (.name // ""), peer_urls: (.peerURLs // []), client_urls: (.clientURLs // [])}]}' \
    <<<"$http_body")
  # etcd writes ids as decimal numbers beyond what jq can count; everybody else knows them in hexadecimal.
  for member in $(jq -r '.cluster_id, .members[].id' <<<"$etcd"); do etcd=${etcd//\"$member\"/\"$(printf '%016x' "$member")\"}; done
  request GET "$EtcdUrl/version"
  version=$(jq -r '.etcdserver // ""' <<<"$http_body" 2>/dev/null) || version=""
  etcd=$(jq -c --arg version "$version" '. + {version: $version}' <<<"$etcd")
}

read_api() {
  request GET "http://${own[address]}:8080/healthz"
  healthz=false nodes='[]'
  if [[ $http_status == 200 && $http_body == ok ]]; then healthz=true; fi
  request GET "http://${own[address]}:8080/api/v1/nodes"
  [[ $http_status != 200 ]] || nodes=$(jq -c '[.items[]? | {name: .metadata.name, uid: .metadata.uid, pod_cidr: (.spec.podCIDR // ""),
    address: ([.status.addresses[]? | select(.type == "InternalIP") | .address] + [""])[0]}]' <<<"$http_body")
}

read_flags() {
  local resource_providers
  find_flags kube-apiserver
  service_cidr=$(flag service-cluster-ip-range)
  ca_file=$(flag client-ca-file)
  find_flags kube-controller-manager
  pod_cidr=$(flag cluster-cidr)
  account_file=$(flag service-account-private-key-file)
  resource_providers=$(flag resource-providers)
  kind_hint=""
  if [[ -n $resource_providers ]]; then kind_hint=tp; elif [[ -n $(flag tenant-server-kubeconfig) ]]; then kind_hint=rp; fi
}

# ---- keys --------------------------------------------------------------------------------------------------------------
# find_keys: sets keys to true where the CAs and the service-account key are in CertDir, or where the processes have them.
find_keys() {
  local name
  keys=true
  [[ -s $account_file ]] || account_file="$folder/service-account.key"
  [[ -s $ca_file ]] || ca_file="$folder/client-ca.crt"
  for name in client-ca server-ca request-header-ca; do
    [[ -s $folder/$name.crt && -s $folder/$name.key ]] || keys=false
  done
  [[ -s $account_file ]] || keys=false
  client_ca=""
  if [[ -s $ca_file ]]; then client_ca=$(<"$ca_file"); fi
}

store_keys() { # sets stored
  local name
  [[ -n $Cluster && -n $Partition ]] || fail InvalidParameter "Cluster is '$Cluster', Partition is '$Partition'" "both, to store keys" "name the partition of this master"
  stored="no-keys"
  if [[ $keys == true ]]; then
    mkdir "$work/keys"
    for name in client-ca server-ca request-header-ca; do cp "$folder/$name.crt" "$folder/$name.key" "$work/keys/"; done
    cp "$account_file" "$work/keys/service-account.key"
    openssl pkey -in "$account_file" -pubout -out "$work/keys/service-account.pub" 2>"$work/openssl.out" || fail ScriptFailed \
      "openssl pkey: $(tail -n 1 "$work/openssl.out")" "a private key in $account_file" "name the folder of the keys in the parameter CertDir"
    create_secret "$work/keys"
    stored=$REPLY
  fi
  [[ ! -s $ca_file ]] || publish_client_ca "$ca_file"
}

single_run node
own_instance "$InstanceId"
[[ -n $EtcdUrl ]] || EtcdUrl="http://${own[address]}:2379"
folder="$root$CertDir"
read_etcd
read_api
read_flags
find_keys
more='{}'
if [[ $Store == yes ]]; then
  store_keys
  more=$(jq -cn --arg stored "$stored" '{stored: $stored}')
fi
succeed "$(jq -cn --argjson etcd "$etcd" --argjson healthz "$healthz" --arg kind "$kind_hint" --arg services "$service_cidr" --arg pods "$pod_cidr" \
  --argjson nodes "$nodes" --argjson longest "$longest_list" --arg ca "$client_ca" --argjson keys "$keys" --argjson more "$more" \
  '{etcd: $etcd, healthz: $healthz, kind_hint: $kind, service_cidr: $services, pod_cidr: $pods, nodes: $nodes[0:$longest],
    client_ca: $ca, keys: $keys} + (if ($nodes | length) > $longest then {nodes_in_all: ($nodes | length)} else {} end) + $more')"
