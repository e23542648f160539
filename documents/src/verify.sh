#!/bin/bash
# Prove on the node that it works: Ready and untainted, pod range, routes to every other node, and a canary pod per tenant
# partition that went the whole way. Changes nothing that stays: the canaries are deleted, also when the run fails.
#
# A canary is sent through its tenant partition's scheduler with a node selector, not bound by spec.nodeName: a bound pod would
# only prove that the kubelet watches the partition, while a scheduled one proves that the partition's scheduler has seen the
# Node through its list of resource partitions, finds it Ready and without the not-ready taint, and may place pods there.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-verify.sh
. "$(dirname "$0")/lib-verify.sh"
step=verify
((limit_s > 0)) || limit_s=180
TenantPartitions="" PodCidr="" Execution="" CanaryImage=""

parameter Cluster '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'name of the Arktos cluster'
parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the resource partition of this node'
parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance; it is the name of the Node'
parameter Zone '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'private hosted zone of the cluster, without a final dot'
parameter TenantPartitions '^[a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49}$' 'ids of all tenant partitions, oldest first, separated by commas'
parameter PodCidr '^[0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2}$' 'pod range of the resource partition'
parameter CniBackend '^(host-gw|vxlan)$' 'flannel backend of the resource partition: host-gw or vxlan'
parameter Execution '^[A-Za-z0-9_-]{1,80}$' 'name of the execution that asks; the canaries carry it as a label'
parameter CanaryImage '^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$' 'image of the canary pod, preloaded on the node, which answers GET / on port 8080'

IFS=, read -r -a tenants <<<"$TenantPartitions"
pods=/api/v1/tenants/system/namespaces/default/pods
sent=()

canary_name() { printf 'autojoin-canary-%s-%s' "$InstanceId" "$1"; }

# Deleting is best effort here, and quick: remove-node deletes by label whatever a dead API server kept.
cleanup() {
  local tenant
  for tenant in "${sent[@]}"; do
    request DELETE "$(api_url "$tenant")$pods/$(canary_name "$tenant")?gracePeriodSeconds=0"
    [[ $http_status == 200 || $http_status == 202 || $http_status == 404 ]] || log "canary in $tenant was not deleted: HTTP $http_status $http_error"
  done
  sent=()
}

check_node() {
  wait_for 90
  read_node
  until [[ ${node[ready]} == True && ${node[tainted]} == no && -n ${node[pods]} ]]; do
    fail_if_broken arktos-kubelet
    in_time || fail NodeNotReady "$(node_seen)" \
      "Ready, without the not-ready taint, with a pod CIDR" \
      "Ready but tainted: the controller-manager of $Partition cannot reach every tenant partition; otherwise read the kubelet's log"
    read_node
  done
  pods_in_range "$PodCidr"
}

send_canary() { # TENANT
  local name body
  name=$(canary_name "$1")
  body=$(jq -n --arg name "$name" --arg node "$InstanceId" --arg execution "$Execution" --arg image "$CanaryImage" '
    {apiVersion: "v1", kind: "Pod",
     metadata: {name: $name, namespace: "default", tenant: "system",
       labels: {"autojoin/canary": "true", "autojoin/node": $node, "autojoin/execution": ($execution[0:63] | sub("[^A-Za-z0-9]+$"; "") | sub("^[^A-Za-z0-9]+"; ""))},
       annotations: {"autojoin/execution": $execution} },
     spec: {nodeSelector: {"kubernetes.io/hostname": $node}, restartPolicy: "Never", terminationGracePeriodSeconds: 0,
       containers: [{name: "canary", image: $image, imagePullPolicy: "IfNotPresent", ports: [{containerPort: 8080}]}]} }')
  sent+=("$1")
  wait_for 20
  while true; do
    api "$1" POST "$pods" "$body"
    [[ $http_status != 200 && $http_status != 201 ]] || return 0
    [[ $http_status == 409 ]] || fail CanaryFailed "$1 refused the canary: HTTP $http_status ${http_body:0:300}" "$1 accepts a pod" "look at the API server of $1"
    # left by a run that was killed: delete it and send again
    request DELETE "$(api_url "$1")$pods/$name?gracePeriodSeconds=0"
    in_time || fail CanaryFailed "$name is in $1 and does not go away" "an earlier canary can be deleted" "delete the pod $name in $1"
  done
}

check_canary() { # TENANT
  local name phase address seen
  name=$(canary_name "$1")
  wait_for 60
  while true; do
    api "$1" GET "$pods/$name"
    [[ $http_status == 200 ]] || fail CanaryFailed "$name vanished from $1: HTTP $http_status" "the canary stays until it is deleted" \
      "the controller-manager of $1 deletes pods of nodes that it cannot see: check its list of resource partitions"
    IFS='|' read -r phase address seen < <(jq -r '[.status.phase // "Pending", .status.podIP // "",
      "node " + (.spec.nodeName // "none") + ([.status.conditions[]? | select(.status == "False") | .message // empty] | join(" "))] | join("|")' <<<"$http_body")
    [[ $phase != Running || -z $address ]] || break
    [[ $phase != Failed ]] || fail CanaryFailed "$name of $1 failed: $seen" "the canary runs" "check that $CanaryImage is on the node and answers on port 8080"
    in_time || fail CanaryFailed "$name of $1 is $phase, $seen" "Running on $InstanceId" \
      "no node: the scheduler of $1 does not see this Node; a node: its kubelet does not serve $1 or lacks $CanaryImage"
  done
  address_in "$address" "${node[pods]}" || fail CanaryFailed "$name of $1 has address $address" "an address in ${node[pods]}" \
    "stale CNI state: join the node again, which removes it"
  wait_for 15
  until request GET "http://$address:8080/" && [[ $http_status == 200 ]]; do
    in_time || fail CanaryFailed "GET http://$address:8080/ of $name: ${http_error:-HTTP $http_status}" "HTTP 200" \
      "check the pod network of the node and that $CanaryImage answers GET / on port 8080"
  done
  canaries=$(jq -c --arg partition "$1" --arg address "$address" '. + [{partition: $partition, address: $address}]' <<<"$canaries")
}

single_run node
own_instance "$InstanceId"
check_node
await_units
check_routes
canaries='[]'
for tenant in "${tenants[@]}"; do send_canary "$tenant"; done
for tenant in "${tenants[@]}"; do check_canary "$tenant"; done
succeed "$(jq -cn --arg uid "${node[uid]}" --arg pods "${node[pods]}" --arg address "${own[address]}" --argjson routes "$route_count" --argjson canaries "$canaries" \
  '{node_uid: $uid, pod_cidr: $pods, address: $address, routes: $routes, canaries: $canaries}')"
