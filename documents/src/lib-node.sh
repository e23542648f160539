#!/bin/bash
# What every node of a partition shares: kubeconfigs by partition, kubelet, kube-proxy, and of a resource partition flannel.
# shellcheck source-path=SCRIPTDIR source=lib.sh
[[ -v exit_codes ]] || . "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-units.sh
[[ -v units ]] || . "$(dirname "$0")/lib-units.sh"
PodCidr="" CniBackend=""

conflist="$root/etc/cni/net.d/10-flannel.conflist"
subnet_env="$root/run/flannel/subnet.env"
cni_plugins=(flannel bridge host-local loopback portmap)

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

# ---- the configuration, written beside the old one ---------------------------------------------------------------------
write_kubeconfig() { # PARTITION; JSON is YAML, and the API takes no credentials on this port
  jq -n --arg id "$1" --arg server "$(api_url "$1")" '{apiVersion: "v1", kind: "Config", "current-context": $id,
    clusters: [{name: $id, cluster: {server: $server}}],
    contexts: [{name: $id, context: {cluster: $id, user: $id}}],
    users: [ {name: $id, user: {}} ]}' >"$work/config/$1.kubeconfig"
}

write_kubeconfigs() { # PARTITION...: the own one and those of the peers; REPLY: the peers' paths, separated by commas
  local partition
  mkdir -p "$work/config"
  write_kubeconfig "$Partition"
  REPLY=""
  for partition in "$@"; do
    write_kubeconfig "$partition"
    REPLY+="${REPLY:+,}$config/$partition.kubeconfig"
  done
}

write_kubelet() { # PEERS CLIENT_CA: kubeconfigs of the tenant partitions, none on a tenant partition's master
  write_process arktos-kubelet "Arktos kubelet of $Partition" "Environment=AUTOJOIN_PARTITION=$Partition
CPUAccounting=true
MemoryAccounting=true" kubelet \
    --hostname-override="$InstanceId" --node-ip="${own[address]}" --address="${own[address]}" \
    --port=10250 --kubeconfig="$config/$Partition.kubeconfig" ${1:+"--tenant-server-kubeconfig=$1"} \
    --client-ca-file="$2" --authorization-mode=Webhook --authentication-token-webhook \
    --root-dir="$root/var/lib/kubelet" --cert-dir="$root/var/lib/kubelet/pki" \
    --container-runtime=remote "--container-runtime-endpoint=containerRuntime,container,/run/containerd/containerd.sock" \
    --runtime-request-timeout=2m --cluster-domain=cluster.local --fail-swap-on=false
}

write_kube_proxy() { # PEERS, as for kubelet
  jq -n --arg own "$config/$Partition.kubeconfig" --arg peers "$1" --arg name "$InstanceId" --arg features "$(features)" \
    '{apiVersion: "kubeproxy.config.k8s.io/v1alpha1", kind: "KubeProxyConfiguration", clientConnection: {kubeconfig: $own}}
      + (if $peers == "" then {} else {tenantPartitionKubeConfig: $peers} end)
      + {hostnameOverride: $name, mode: "iptables",
      featureGates: ($features | split(",") | map(split("=") | {(.[0]): (.[1] == "true")}) | add)}' >"$work/config/kube-proxy.yaml"
  write_unit arktos-kube-proxy "Arktos kube-proxy of $Partition" "Environment=AUTOJOIN_PARTITION=$Partition" \
    "$root$BinDir/hyperkube" kube-proxy --v=3 --config="$config/kube-proxy.yaml"
}

write_flannel() {
  jq -n --arg network "$PodCidr" --arg type "$CniBackend" \
    '{Network: $network, Backend: ({Type: $type} + (if $type == "vxlan" then {DirectRouting: true} else {} end))}' >"$work/config/net-conf.json"
  jq -n --arg subnet_file "$subnet_env" --arg data "$root/var/lib/cni/flannel" '{name: "cbr0", cniVersion: "0.3.1", plugins: [
    {type: "flannel", subnetFile: $subnet_file, dataDir: $data, delegate: {hairpinMode: true, isDefaultGateway: true}},
    {type: "portmap", capabilities: {portMappings: true}}]}' >"$work/config/10-flannel.conflist"
  write_unit arktos-flanneld "flannel of $Partition ($CniBackend)" "Environment=NODE_NAME=$InstanceId" \
    "$root$BinDir/flanneld" --iface="${own[address]}" --ip-masq --kube-subnet-mgr --kube-api-url="$(api_url "$Partition")" \
    --net-config-path="$config/net-conf.json" --subnet-file="$subnet_env"
}

install_plugins() {
  local name
  mkdir -p "$root/opt/cni/bin" "$root/etc/cni/net.d" "$root/run/flannel" "$root/var/lib/kubelet" "$root/var/lib/cni"
  for name in "${cni_plugins[@]}"; do ln -sfn "$root$BinDir/$name" "$root/opt/cni/bin/$name"; done
}

same_pod_network() { # the pod network on this node is the one asked for, and it still has the Node's own range
  cmp -s "$work/config/net-conf.json" "$config/net-conf.json" && [[ -f $conflist && -f $subnet_env && -n ${node[pods]} ]] &&
    grep -q "^FLANNEL_SUBNET=${node[pods]%.*}[.]" "$subnet_env"
}

put_back() {
  if [[ -f $config/10-flannel.conflist ]]; then cp "$config/10-flannel.conflist" "$conflist"; fi
}

# ---- changing the node -------------------------------------------------------------------------------------------------
# A node that was joined a moment ago may not have said yet that it is Ready: wait for it rather than begin again.
node_comes_ready() {
  wait_for 20
  while [[ ${node[ready]} != True ]] && in_time; do read_node; done
  [[ ${node[ready]} == True ]]
}

# swap_configuration: from here on a failure puts back what was. A pod network that is right stays.
swap_configuration() {
  local unit keep_network=""
  if [[ -n $serving ]] && same_pod_network; then keep_network=yes; fi
  keep_previous
  changed=yes
  for unit in "${our_units[@]}"; do
    [[ ! -f $units/$unit.service ]] || systemctl stop "$unit.service"
  done
  [[ -n $keep_network ]] || clean_cni "$PodCidr"
  install_configuration
  install_plugins
}

start_pod_node() { # kubelet, then the pod network of the range that the Node was given, then kube-proxy
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
}
