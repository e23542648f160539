#!/bin/bash
# Prove on a master that it works: its units, its API server by name, its own Node, and that it sees its peers as far as they
# answer. Peers that do not answer yet are named, not held against it. Changes nothing.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-verify.sh
. "$(dirname "$0")/lib-verify.sh"
step=verify-master
((limit_s > 0)) || limit_s=180
Kind="" TenantPartitions="" ResourcePartitions="" PodCidr="" Execution=""

parameter Cluster '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'name of the Arktos cluster'
parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the partition'
parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance; it is the name of the Node'
parameter Zone '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'private hosted zone of the cluster, without a final dot'
parameter Kind '^(tp|rp)$' 'kind of the partition: tp or rp'
parameter TenantPartitions '^([a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49})?$' 'ids of all tenant partitions, oldest first, separated by commas' ''
parameter ResourcePartitions '^([a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49})?$' 'ids of all resource partitions, separated by commas' ''
parameter PodCidr '^([0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2})?$' 'pod range of a resource partition; empty for a tenant partition' ''
parameter CniBackend '^(host-gw|vxlan)?$' 'flannel backend of a resource partition; empty for a tenant partition' ''
parameter Execution '^[A-Za-z0-9_-]{1,80}$' 'name of the execution that asks'

IFS=, read -r -a tenants <<<"$TenantPartitions"
IFS=, read -r -a resources <<<"$ResourcePartitions"

# scheduler_sees: sets sees to the number of resource partitions that the scheduler named since its last start, 0 when it did not.
scheduler_sees() {
  sees=$(journalctl -u arktos-kube-scheduler.service --no-pager 2>/dev/null | awk '/autojoin starts arktos-kube-scheduler/ {n = 0}
    /Scheduler started with resource provider number=/ {sub(/.*number=/, ""); n = $0 + 0} END {print n + 0}') || sees=0
}

check_tp() {
  local expected
  our_units=(arktos-etcd arktos-apiserver arktos-network-controller arktos-kubelet arktos-kube-proxy arktos-kube-scheduler arktos-kube-controller-manager)
  held_units=(arktos-kube-scheduler arktos-kube-controller-manager)
  not_healthy "${resources[@]}"
  if ((${#waiting[@]} == 0 && ${#resources[@]} > 0)); then peers_answer=yes; fi
  await_units
  wait_for 30
  read_node
  until [[ -n ${node[uid]} ]]; do
    in_time || fail NodeNotReady "$(node_seen)" "the master is registered in its own partition" "look at the kubelet's log"
    read_node
  done
  sees=0
  if [[ $(unit_state arktos-kube-scheduler) == active ]]; then
    expected=$((${#resources[@]} - ${#waiting[@]}))
    wait_for 20
    scheduler_sees
    while ((sees < expected)); do
      in_time || fail PeersNotSeen "the scheduler started with $sees resource partition(s)" "at least $expected, those that are listed and answer" \
        "join the master again with all of them; read 'journalctl -u arktos-kube-scheduler' on the node"
      scheduler_sees
    done
  fi
}

check_rp() {
  our_units=(arktos-etcd arktos-apiserver arktos-kube-controller-manager arktos-kubelet arktos-flanneld arktos-kube-proxy)
  await_units
  wait_for 90
  while true; do
    read_node
    not_healthy "${tenants[@]}"
    if [[ -n ${node[pods]} ]] && { ((${#waiting[@]} > 0)) || [[ ${node[ready]} == True && ${node[tainted]} == no ]]; }; then break; fi
    in_time || fail NodeNotReady "$(node_seen); tenant partitions that do not answer: ${waiting[*]:-none}" \
      "a pod CIDR, and, since all tenant partitions answer, Ready without the not-ready taint" \
      "read the logs of the kubelet and of the controller-manager of $Partition"
  done
  pods_in_range "$PodCidr"
  check_routes
}

single_run node
own_instance "$InstanceId"
log "asked by $Execution"
api_healthy "$Partition"
if [[ $Kind == tp ]]; then
  check_tp
  more=$(jq -cn --argjson sees "$sees" '{resource_partitions_seen: $sees}')
else
  [[ -n $PodCidr && -n $CniBackend ]] || fail InvalidParameter "PodCidr is '$PodCidr', CniBackend is '$CniBackend'" "both of a resource partition" \
    "declare pod_cidr and cni_backend of $Partition"
  check_rp
  more=$(jq -cn --arg uid "${node[uid]}" --arg pods "${node[pods]}" '{node_uid: $uid, pod_cidr: $pods}')
fi
succeed "$(jq -cn --argjson waiting "$(json_list "${waiting[@]}")" --argjson more "$more" '{waiting_for: $waiting} + $more')"
