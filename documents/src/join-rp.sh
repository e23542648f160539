#!/bin/bash
# Make this instance the working master of a resource partition whose etcd and API server run: controller-manager, and a node of
# its own, that is kubelet, flannel and proxy. Tenant partitions that do not answer yet are named and waited for by the processes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-units.sh
. "$(dirname "$0")/lib-units.sh"
# shellcheck source-path=SCRIPTDIR source=lib-node.sh
. "$(dirname "$0")/lib-node.sh"
# shellcheck source-path=SCRIPTDIR source=lib-master.sh
. "$(dirname "$0")/lib-master.sh"
step=join-rp
((limit_s > 0)) || limit_s=240

parameter Cluster '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'name of the Arktos cluster'
parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the resource partition'
parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance; it is the name of the Node'
parameter Zone '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'private hosted zone of the cluster, without a final dot'
parameter TenantPartitions '^([a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49})?$' 'ids of all tenant partitions, oldest first, separated by commas' ''
parameter ResourcePartitions '^([a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49})?$' 'ids of all resource partitions, separated by commas' ''
parameter PodCidr '^[0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2}$' 'pod range of the resource partition'
parameter CniBackend '^(host-gw|vxlan)$' 'flannel backend of the resource partition: host-gw or vxlan'
parameter BinDir '^/[A-Za-z0-9_./-]{1,200}$' 'folder of the golden image that holds the Arktos, flannel and CNI binaries' '/opt/arktos/bin'

IFS=, read -r -a tenants <<<"$TenantPartitions"
our_units=(arktos-kube-controller-manager arktos-kubelet arktos-flanneld arktos-kube-proxy)

write_configuration() {
  local peers
  write_kubeconfigs "${tenants[@]}"
  peers=$REPLY
  write_master rp
  write_process arktos-kube-controller-manager "Arktos controller-manager of $Partition" "Environment=AUTOJOIN_PARTITION=$Partition" \
    kube-controller-manager --leader-elect=false --kubeconfig="$config/$Partition.kubeconfig" \
    ${peers:+"--tenant-server-kubeconfig=$peers"} --controllers=nodelifecycle,nodeipam,ttl,serviceaccount,serviceaccount-token \
    --allocate-node-cidrs=true --cluster-cidr="$PodCidr" \
    --service-account-private-key-file="$pki/service-account.key" --root-ca-file="$pki/server-ca.crt"
  write_kubelet "$peers" "$pki/client-ca.crt"
  write_flannel
  write_kube_proxy "$peers"
}

finish() { # ALREADY
  not_healthy "${tenants[@]}"
  succeed "$(jq -cn --argjson already "$1" --argjson waiting "$(json_list "${waiting[@]}")" --arg uid "${node[uid]}" --arg pods "${node[pods]}" \
    --arg address "${own[address]}" '{already: $already, waiting_for: $waiting, node_uid: $uid, pod_cidr: $pods, address: $address}')"
}

# ---- the run -----------------------------------------------------------------------------------------------------------
single_run node
own_instance "$InstanceId"
check_binaries hyperkube flanneld "${cni_plugins[@]}"
check_pki client-ca.crt server-ca.crt service-account.key
api_healthy "$Partition"
check_adjacency
write_configuration
read_node
if same_configuration && same_pod_network && all_good && node_comes_ready; then finish true; fi

if [[ ${node[ready]} == True && $(unit_state arktos-kubelet) == active ]]; then serving=yes; fi
check_peers "${tenants[@]}"
# A Node keeps its pod CIDR for life: one outside the range can only be deleted, so nothing is begun.
[[ -z ${node[pods]} ]] || pods_in_range "$PodCidr"
swap_configuration
start_unit arktos-kube-controller-manager
start_pod_node
finish false
