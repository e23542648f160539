#!/bin/bash
# Make this instance a worker of a resource partition: check, configure, start, in one call that may be repeated.
#
# Nothing is changed before every check has passed. A run that fails afterwards stops what it started, or, where the node
# was serving before, puts the previous configuration back and leaves it serving.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
step=join-worker
((limit_s > 0)) || limit_s=240
Cluster="" TenantPartitions="" PodCidr="" CniBackend="" ClientCaParameter="" BinDir=""

parameter Cluster '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'name of the Arktos cluster'
parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the resource partition that the worker joins'
parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance; it is the name of the Node'
parameter Zone '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'private hosted zone of the cluster, without a final dot'
parameter TenantPartitions '^[a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49}$' 'ids of all tenant partitions, oldest first, separated by commas'
parameter PodCidr '^[0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2}$' 'pod range of the resource partition'
parameter CniBackend '^(host-gw|vxlan)$' 'flannel backend of the resource partition: host-gw or vxlan'
parameter ClientCaParameter '^/[A-Za-z0-9_./-]{1,500}$' 'Parameter Store name of the client CA that the resource partition publishes'
parameter BinDir '^/[A-Za-z0-9_./-]{1,200}$' 'folder of the golden image that holds the Arktos, flannel and CNI binaries' '/opt/arktos/bin'

IFS=, read -r -a tenants <<<"$TenantPartitions"
bin="$root$BinDir"
config="$root/etc/arktos"
previous="$root/etc/arktos.previous"
units="$root/etc/systemd/system"
conflist="$root/etc/cni/net.d/10-flannel.conflist"
subnet_env="$root/run/flannel/subnet.env"

# ---- what is put back when a run fails after it changed something ------------------------------------------------------
changed="" serving="" restored=""
started=()
undo() {
  [[ -n $changed && -z $restored ]] || return 0
  restored=yes
  local unit
  if [[ -n $serving ]]; then
    if [[ -f $previous/complete ]]; then
      rm -rf -- "$config"
      cp -a "$previous/config" "$config"
      for unit in "${our_units[@]}"; do
        [[ ! -f $previous/units/$unit.service ]] || cp -a "$previous/units/$unit.service" "$units/$unit.service"
      done
    fi
    if [[ -f $config/10-flannel.conflist ]]; then cp "$config/10-flannel.conflist" "$conflist"; fi
    systemctl daemon-reload
    for unit in "${our_units[@]}"; do systemctl restart "$unit.service"; done
    undone='{"serving_again": true}'
  else
    for unit in "${started[@]}"; do
      systemctl stop "$unit.service"
      systemctl disable "$unit.service"
    done
    undone="{\"stopped\": $(json_list "${started[@]}")}"
  fi
}

# ---- checks: nothing is changed in this part ---------------------------------------------------------------------------
check_binaries() {
  local name missing=""
  for name in hyperkube flanneld flannel bridge host-local loopback portmap; do
    [[ -x $bin/$name ]] || missing+=" $name"
  done
  [[ -z $missing ]] || fail BinariesMissing "$BinDir lacks$missing" "hyperkube, flanneld and the CNI plugins in $BinDir" \
    "bake them into the image, or name their folder in the parameter BinDir; nothing is downloaded"
}

# host-gw sets a plain route through the other node's address, which the kernel accepts only inside the own subnet.
check_adjacency() {
  [[ $CniBackend == host-gw ]] || return 0
  api "$Partition" GET /api/v1/nodes
  [[ $http_status == 200 ]] || unexpected "listing the Nodes of $Partition"
  local name address far=()
  while IFS='|' read -r name address; do
    if [[ -n $address ]] && ! address_in "$address" "${own[subnet]}"; then far+=("$name at $address"); fi
  done < <(jq -r --arg self "$InstanceId" '.items[]? | select(.metadata.name != $self)
    | [.metadata.name, ([.status.addresses[]? | select(.type == "InternalIP") | .address] + [""])[0]] | join("|")' <<<"$http_body")
  ((${#far[@]} == 0)) || fail SubnetNotAdjacent \
    "this node is ${own[address]} in subnet ${own[subnet]}; outside it: $(printf '%s; ' "${far[@]:0:5}")${#far[@]} node(s) in all" \
    "with host-gw every node of $Partition has its address inside ${own[subnet]}" \
    "pin the Auto Scaling group of $Partition to the one subnet of its nodes, or declare cni_backend vxlan for all of them"
}

fetch_client_ca() {
  local error
  wait_for 20
  until aws ssm get-parameter --region "${own[region]}" --name "$ClientCaParameter" --query Parameter.Value --output text \
    >"$work/client-ca.crt" 2>"$work/aws.err"; do
    error=$(tr '\n' ' ' <"$work/aws.err" | head -c 300)
    case $error in
      *ParameterNotFound* | *AccessDenied*)
        fail ClientCaMissing "$ClientCaParameter: $error" "the client CA of $Partition in Parameter Store, readable by this instance" \
          "publish client-ca.crt of $Partition as $ClientCaParameter, and allow ssm:GetParameter on it to the instance profile"
        ;;
    esac
    in_time || fail ApiUnreachable "aws ssm get-parameter: $error" "Parameter Store answers" \
      "check the route to the SSM endpoint and the instance profile"
  done
  grep -q -- '-----BEGIN CERTIFICATE-----' "$work/client-ca.crt" || fail ClientCaMissing \
    "$ClientCaParameter holds no PEM certificate" "a PEM certificate" "publish client-ca.crt of $Partition as $ClientCaParameter"
}

# ---- the configuration, written beside the old one ---------------------------------------------------------------------
features='AllAlpha=false,WorkloadInfoDefaulting=true,QPSDoubleGCController=true,QPSDoubleRSController=true,MandatoryArktosNetwork=true'

write_kubeconfig() { # PARTITION; JSON is YAML, and the API takes no credentials on this port
  jq -n --arg id "$1" --arg server "$(api_url "$1")" '{apiVersion: "v1", kind: "Config", "current-context": $id,
    clusters: [{name: $id, cluster: {server: $server}}],
    contexts: [{name: $id, context: {cluster: $id, user: $id}}],
    users: [ {name: $id, user: {}} ]}' >"$work/config/$1.kubeconfig"
}

write_unit() { # UNIT DESCRIPTION ENVIRONMENT COMMAND...
  local unit=$1 description=$2 environment=$3
  shift 3
  cat >"$work/units/$unit.service" <<UNIT
[Unit]
Description=$description
Wants=network-online.target
After=network-online.target containerd.service

[Service]
Type=simple
Environment=$environment
ExecStartPre=/bin/echo autojoin starts $unit
ExecStart=$*
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
UNIT
}

write_configuration() {
  umask 077
  mkdir -p "$work/config" "$work/units"
  local tenant peers=""
  write_kubeconfig "$Partition"
  for tenant in "${tenants[@]}"; do
    write_kubeconfig "$tenant"
    peers+="${peers:+,}$config/$tenant.kubeconfig"
  done
  cp "$work/client-ca.crt" "$work/config/client-ca.crt"
  jq -n --arg network "$PodCidr" --arg type "$CniBackend" \
    '{Network: $network, Backend: ({Type: $type} + (if $type == "vxlan" then {DirectRouting: true} else {} end))}' >"$work/config/net-conf.json"
  jq -n --arg subnet_file "$subnet_env" --arg data "$root/var/lib/cni/flannel" '{name: "cbr0", cniVersion: "0.3.1", plugins: [
    {type: "flannel", subnetFile: $subnet_file, dataDir: $data, delegate: {hairpinMode: true, isDefaultGateway: true}},
    {type: "portmap", capabilities: {portMappings: true}}]}' >"$work/config/10-flannel.conflist"
  jq -n --arg own "$config/$Partition.kubeconfig" --arg peers "$peers" --arg name "$InstanceId" --arg features "$features" \
    '{apiVersion: "kubeproxy.config.k8s.io/v1alpha1", kind: "KubeProxyConfiguration", clientConnection: {kubeconfig: $own},
      tenantPartitionKubeConfig: $peers, hostnameOverride: $name, mode: "iptables",
      featureGates: ($features | split(",") | map(split("=") | {(.[0]): (.[1] == "true")}) | add)}' >"$work/config/kube-proxy.yaml"
  jq -n --arg cluster "$Cluster" --arg partition "$Partition" --arg node "$InstanceId" --arg pods "$PodCidr" --arg cni "$CniBackend" \
    --arg tenants "$TenantPartitions" '{cluster: $cluster, partition: $partition, node: $node, pod_cidr: $pods, cni_backend: $cni,
      tenant_partitions: ($tenants | split(","))}' >"$work/config/worker.json"

  write_unit arktos-kubelet "Arktos kubelet, worker of $Partition" "AUTOJOIN_PARTITION=$Partition" \
    "$bin/hyperkube" kubelet --v=3 --hostname-override="$InstanceId" --node-ip="${own[address]}" --address="${own[address]}" --port=10250 \
    --kubeconfig="$config/$Partition.kubeconfig" --tenant-server-kubeconfig="$peers" \
    --client-ca-file="$config/client-ca.crt" --authorization-mode=Webhook --authentication-token-webhook \
    --root-dir="$root/var/lib/kubelet" --cert-dir="$root/var/lib/kubelet/pki" \
    --container-runtime=remote "--container-runtime-endpoint=containerRuntime,container,/run/containerd/containerd.sock" \
    --runtime-request-timeout=2m --cluster-domain=cluster.local --fail-swap-on=false --feature-gates="$features"
  write_unit arktos-flanneld "flannel of $Partition ($CniBackend)" "NODE_NAME=$InstanceId" \
    "$bin/flanneld" --iface="${own[address]}" --ip-masq --kube-subnet-mgr --kube-api-url="$(api_url "$Partition")" \
    --net-config-path="$config/net-conf.json" --subnet-file="$subnet_env"
  write_unit arktos-kube-proxy "Arktos kube-proxy, worker of $Partition" "AUTOJOIN_PARTITION=$Partition" \
    "$bin/hyperkube" kube-proxy --v=3 --config="$config/kube-proxy.yaml"
  chmod 0644 "$work"/units/*.service
}

same_configuration() {
  local unit
  diff -rq "$work/config" "$config" >/dev/null 2>&1 || return 1
  for unit in "${our_units[@]}"; do
    cmp -s "$work/units/$unit.service" "$units/$unit.service" || return 1
  done
}

same_pod_network() { # the pod network on this node is the one asked for, and it still has the Node's own range
  cmp -s "$work/config/net-conf.json" "$config/net-conf.json" && [[ -f $conflist && -f $subnet_env && -n ${node[pods]} ]] &&
    grep -q "^FLANNEL_SUBNET=${node[pods]%.*}[.]" "$subnet_env"
}

keep_previous() { # for undo; the mark is written last
  rm -rf -- "$previous"
  [[ -d $config ]] || return 0
  mkdir -p "$previous/units"
  cp -a "$config" "$previous/config"
  local unit
  for unit in "${our_units[@]}"; do
    [[ ! -f $units/$unit.service ]] || cp -a "$units/$unit.service" "$previous/units/"
  done
  touch "$previous/complete"
}

install_configuration() { # each file appears whole or not at all; files that are no longer listed go
  mkdir -p "$config" "$units"
  chmod 0700 "$config"
  local file unit name
  for file in "$work"/config/*; do
    name="${file##*/}"
    cp "$file" "$config/.$name.new"
    chmod 0600 "$config/.$name.new"
    mv -f "$config/.$name.new" "$config/$name"
  done
  for file in "$config"/* "$config"/.*.new; do
    [[ ! -f $file || -f $work/config/${file##*/} ]] || rm -f -- "$file"
  done
  for unit in "${our_units[@]}"; do
    cp "$work/units/$unit.service" "$units/.$unit.new"
    mv -f "$units/.$unit.new" "$units/$unit.service"
  done
  mkdir -p "$root/opt/cni/bin" "$root/etc/cni/net.d" "$root/run/flannel" "$root/var/lib/kubelet" "$root/var/lib/cni"
  for name in flannel bridge host-local loopback portmap; do ln -sfn "$bin/$name" "$root/opt/cni/bin/$name"; done
  systemctl daemon-reload
}

start_unit() {
  started+=("$1")
  systemctl enable "$1.service"
  systemctl restart "$1.service" || fail UnitFailed "$1 does not start: $(last_log "$1")" "$1 starts" "read 'journalctl -u $1' on the node"
}

outcome() {
  jq -cn --argjson already "$1" --arg uid "${node[uid]}" --arg pods "${node[pods]}" --arg address "${own[address]}" \
    '{already: $already, node_uid: $uid, pod_cidr: $pods, address: $address}'
}

# ---- the run -----------------------------------------------------------------------------------------------------------
single_run node
own_instance "$InstanceId"
check_binaries
api_healthy "$Partition" "${tenants[@]}"
check_adjacency
fetch_client_ca
write_configuration
read_node

# A node that was joined a moment ago may not have said yet that it is Ready: wait for it rather than begin again.
if same_configuration && same_pod_network && all_active; then
  wait_for 20
  while [[ ${node[ready]} != True ]] && in_time; do read_node; done
  [[ ${node[ready]} != True ]] || succeed "$(outcome true)"
fi
if [[ ${node[ready]} == True && $(unit_state arktos-kubelet) == active ]]; then serving=yes; fi

# A Node keeps its pod CIDR for life: one outside the range can only be deleted, so nothing is begun.
[[ -z ${node[pods]} ]] || pods_in_range "$PodCidr"
keep_network=""
if [[ -n $serving ]] && same_pod_network; then keep_network=yes; fi
keep_previous
changed=yes
for unit in "${our_units[@]}"; do
  [[ ! -f $units/$unit.service ]] || systemctl stop "$unit.service"
done
[[ -n $keep_network ]] || clean_cni "$PodCidr"
install_configuration

start_unit arktos-kubelet
wait_for 90
until [[ -n ${node[pods]} && ${node[ready]} != absent ]]; do
  fail_if_broken arktos-kubelet
  in_time || fail NodeNotReady "$(node_seen)" \
    "the Node is registered and has a pod CIDR" \
    "look at the kubelet's log and at the resource partition's controller-manager (it waits for all tenant partitions)"
  read_node
done
pods_in_range "$PodCidr"

start_unit arktos-flanneld
wait_for 60
until [[ -f $subnet_env ]] && grep -q "^FLANNEL_NETWORK=$PodCidr\$" "$subnet_env"; do
  fail_if_broken arktos-flanneld
  in_time || fail UnitFailed "flanneld wrote no lease of $PodCidr: $(last_log arktos-flanneld)" "$subnet_env for $PodCidr" \
    "read 'journalctl -u arktos-flanneld' on the node"
done
cp "$config/10-flannel.conflist" "$conflist.new"
mv -f "$conflist.new" "$conflist"

start_unit arktos-kube-proxy
await_units
rm -rf -- "$previous"
succeed "$(outcome false)"
