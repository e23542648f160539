#!/bin/bash
# Start etcd of this partition on its one member: found it when the workflow decided so, or resume with the data that is here.
#
# etcd may found only while etcd.env says `new`, which this script writes for the token of a decided founding. Once etcd was
# healthy it says `existing`, with which etcd refuses to start without data: a reboot with a lost disk never founds again. Data
# is never deleted, and an etcd that is healthy with the right cluster id is not restarted.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-units.sh
. "$(dirname "$0")/lib-units.sh"
step=start-etcd
((limit_s > 0)) || limit_s=120
Cluster="" Mode="" Token="" ClusterId=""

parameter Cluster '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'name of the Arktos cluster'
parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the partition'
parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance; it is the name of the member'
parameter Mode '^(found|resume)$' 'found: start a new etcd cluster; resume: start with the data of a formed partition'
parameter Token '^[a-z0-9-]{1,32}[.][a-z0-9-]{1,32}[.][1-9][0-9]{0,5}[.]i-[0-9a-f]{8,17}$' 'token of the founding: cluster, partition, epoch and instance, separated by dots'
parameter ClusterId '^([0-9a-f]{16})?$' 'cluster id of the formed partition, 16 hexadecimal digits, or empty' ''
parameter BinDir '^/[A-Za-z0-9_./-]{1,200}$' 'folder of the golden image that holds the Arktos binaries and etcd' '/opt/arktos/bin'

our_units=(arktos-etcd)
config="$root/etc/arktos/etcd"
store="$root/var/lib/etcd"

has_data() { compgen -G "$store/member/wal/*.wal" >/dev/null; }
recorded() { sed -n "s/^$1=//p" "$config/etcd.env" 2>/dev/null || true; }
healthy() { request GET "$client/health" && [[ $http_status == 200 && $(jq -r '.health | tostring' <<<"$http_body" 2>/dev/null) == true ]]; }

# ---- checks: nothing is changed in this part ---------------------------------------------------------------------------
check_founding() {
  [[ $Mode == found ]] || return 0
  [[ $Token == "$Cluster.$Partition."*".$InstanceId" ]] || fail InvalidParameter "Token is $Token" \
    "a founding of $Partition in $Cluster by $InstanceId" "send the token that the workflow decided for this instance"
}

check_data() {
  local token
  if [[ $Mode == resume ]]; then
    has_data || fail QuorumLost "$store has no write-ahead log" "the data of the formed partition $Partition" \
      "mount or restore the data of $Partition in $store; it is never founded again"
    return 0
  fi
  token=$(recorded ETCD_INITIAL_CLUSTER_TOKEN)
  [[ $token == "$Token" ]] || ! has_data || fail EtcdDataForeign "$store has data of ${token:-an unknown founding}" \
    "no data, or that of $Token" "if nobody needs the data, move $store away and join again; nothing was deleted"
}

# ---- configuration -----------------------------------------------------------------------------------------------------
write_environment() { # STATE CLUSTER_ID: what etcd and its guard read at each start
  printf 'ETCD_INITIAL_CLUSTER_STATE=%s\nETCD_INITIAL_CLUSTER_TOKEN=%s\nAUTOJOIN_CLUSTER_ID=%s\n' "$1" "$Token" "$2" >"$work/config/etcd.env"
}

write_configuration() {
  mkdir -p "$work/config"
  if [[ $Mode == found ]] && ! has_data; then write_environment new ""; else write_environment existing "${ClusterId:-$(recorded AUTOJOIN_CLUSTER_ID)}"; fi
  cat >"$work/config/guard.sh" <<GUARD
#!/bin/bash
# etcd starts with its data, or without any only while a decided founding says so.
compgen -G "$store/member/wal/*.wal" >/dev/null || [[ \$ETCD_INITIAL_CLUSTER_STATE == new ]] || {
  echo "autojoin: $store has no data of $Partition, which was formed: it is not founded again; mount or restore the data"
  exit 1
}
GUARD
  write_unit arktos-etcd "etcd of $Partition" "Restart=on-failure
LimitNOFILE=65536
EnvironmentFile=$config/etcd.env
ExecStartPre=/bin/bash $config/guard.sh" \
    "$root$BinDir/etcd" --name="$InstanceId" --data-dir="$store" \
    --listen-client-urls="$client" --advertise-client-urls="$client" \
    --listen-peer-urls="$peer" --initial-advertise-peer-urls="$peer" --initial-cluster="$InstanceId=$peer"
}

# ---- what etcd says about itself ---------------------------------------------------------------------------------------
declare -A seen=()
read_member() { # sets seen[cluster_id], seen[member_id], seen[version]; fails unless this is our one member
  local members id cluster urls
  request POST "$client/v3/cluster/member/list" '{}'
  [[ $http_status == 200 ]] || unexpected "listing the members of etcd"
  IFS='|' read -r members cluster id urls < <(jq -r '[(.members // [] | length | tostring), .header.cluster_id,
    (.members // [] | .[0].ID // "0"), (.members // [] | map(.peerURLs // []) | add // [] | join(","))] | join("|")' <<<"$http_body")
  [[ $members == 1 && $urls == "$peer" ]] || fail EtcdDataForeign "etcd has $members member(s) with peer URLs $urls" "one member, at $peer" \
    "the data in $store is of another instance or of several members; nothing was deleted"
  seen=([cluster_id]="$(printf '%016x' "$cluster")" [member_id]="$(printf '%016x' "$id")")
  request GET "$client/version"
  seen[version]=$(jq -r '.etcdserver // ""' <<<"$http_body")
}

check_cluster_id() {
  local expected="${ClusterId:-$(recorded AUTOJOIN_CLUSTER_ID)}"
  [[ -z $expected || ${seen[cluster_id]} == "$expected" ]] || fail ClusterIdMismatch "etcd answers with cluster id ${seen[cluster_id]}" "$expected" \
    "look at what lies in $store before anything else; nothing was deleted"
}

never_again() { # from now on etcd of this node starts with its data only
  write_environment existing "${seen[cluster_id]}"
  cp "$work/config/etcd.env" "$config/.etcd.env.new"
  mv -f "$config/.etcd.env.new" "$config/etcd.env"
}

outcome() {
  jq -cn --argjson already "$1" --arg cluster "${seen[cluster_id]}" --arg member "${seen[member_id]}" --arg version "${seen[version]}" \
    '{already: $already, cluster_id: $cluster, member_id: $member, version: $version}'
}

# ---- the run -----------------------------------------------------------------------------------------------------------
single_run node
own_instance "$InstanceId"
client="http://${own[address]}:2379" peer="http://${own[address]}:2380"
check_founding
check_binaries etcd
check_ports arktos-etcd 2379 2380
check_data
write_configuration

if serves arktos-etcd; then
  read_member
  check_cluster_id
  if [[ $(recorded ETCD_INITIAL_CLUSTER_STATE) == new ]]; then never_again; fi
  systemctl enable arktos-etcd.service
  succeed "$(outcome true)"
fi

if [[ $(unit_state arktos-etcd) == active ]]; then serving=yes; fi
keep_previous
changed=yes
mkdir -p "$store"
install_configuration
start_unit arktos-etcd
wait_for 90
until healthy; do
  fail_if_broken arktos-etcd
  in_time || fail UnitFailed "etcd at $client is not healthy: ${http_error:-HTTP $http_status ${http_body:0:200}} $(last_log arktos-etcd)" \
    "etcd says that it is healthy" "read 'journalctl -u arktos-etcd' on the node"
done
read_member
check_cluster_id
never_again
rm -rf -- "$previous"
succeed "$(outcome false)"
