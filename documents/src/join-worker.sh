#!/bin/bash
# Make this instance a worker of a resource partition: check, configure, start, in one call that may be repeated.
#
# Nothing is changed before every check has passed. A run that fails afterwards stops what it started, or, where the node
# was serving before, puts the previous configuration back and leaves it serving.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-units.sh
. "$(dirname "$0")/lib-units.sh"
# shellcheck source-path=SCRIPTDIR source=lib-node.sh
. "$(dirname "$0")/lib-node.sh"
step=join-worker
((limit_s > 0)) || limit_s=240
Cluster="" TenantPartitions="" ClientCaParameter=""

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

# ---- checks: nothing is changed in this part ---------------------------------------------------------------------------
fetch_client_ca() {
  aws_call ssm get-parameter --name "$ClientCaParameter" --query Parameter.Value --output text
  [[ -z $aws_code ]] || fail ClientCaMissing "$ClientCaParameter: $aws_error" "the client CA of $Partition in Parameter Store, readable by this instance" \
    "publish client-ca.crt of $Partition as $ClientCaParameter, and allow ssm:GetParameter on it to the instance profile"
  grep -q -- '-----BEGIN CERTIFICATE-----' "$work/aws.out" || fail ClientCaMissing \
    "$ClientCaParameter holds no PEM certificate" "a PEM certificate" "publish client-ca.crt of $Partition as $ClientCaParameter"
  cp "$work/aws.out" "$work/client-ca.crt"
}

write_configuration() {
  local peers
  write_kubeconfigs "${tenants[@]}"
  peers=$REPLY
  cp "$work/client-ca.crt" "$work/config/client-ca.crt"
  jq -n --arg cluster "$Cluster" --arg partition "$Partition" --arg node "$InstanceId" --arg pods "$PodCidr" --arg cni "$CniBackend" \
    --arg tenants "$TenantPartitions" '{cluster: $cluster, partition: $partition, node: $node, pod_cidr: $pods, cni_backend: $cni,
      tenant_partitions: ($tenants | split(","))}' >"$work/config/worker.json"
  write_kubelet "$peers" "$config/client-ca.crt"
  write_flannel
  write_kube_proxy "$peers"
}

outcome() {
  jq -cn --argjson already "$1" --arg uid "${node[uid]}" --arg pods "${node[pods]}" --arg address "${own[address]}" \
    '{already: $already, node_uid: $uid, pod_cidr: $pods, address: $address}'
}

# ---- the run -----------------------------------------------------------------------------------------------------------
single_run node
own_instance "$InstanceId"
check_binaries hyperkube flanneld "${cni_plugins[@]}"
api_healthy "$Partition" "${tenants[@]}"
check_adjacency
fetch_client_ca
write_configuration
read_node

if same_configuration && same_pod_network && all_good && node_comes_ready; then succeed "$(outcome true)"; fi
if [[ ${node[ready]} == True && $(unit_state arktos-kubelet) == active ]]; then serving=yes; fi

# A Node keeps its pod CIDR for life: one outside the range can only be deleted, so nothing is begun.
[[ -z ${node[pods]} ]] || pods_in_range "$PodCidr"
swap_configuration
start_pod_node
succeed "$(outcome false)"
