#!/bin/bash
# Remove a Node of this resource partition from outside, on any of its masters: canaries that the node left in the tenant
# partitions first, then the Node, and only if it is the one that was asked for.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
step=remove-node
((limit_s > 0)) || limit_s=90
NodeName="" NodeUid="" TenantPartitions="" Scope=""

parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the resource partition that holds the Node'
parameter NodeName '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'name of the Node; the instance id where we named it'
parameter NodeUid '^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$' 'uid of the Node as it was recorded, or empty when none was' ''
parameter TenantPartitions '^[a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49}$' 'ids of all tenant partitions, oldest first, separated by commas'
parameter Scope '^(node|canaries)$' 'what to remove: the Node with its canaries, or of a node that serves only its canaries' 'node'
parameter Zone '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'private hosted zone of the cluster, without a final dot'

IFS=, read -r -a tenants <<<"$TenantPartitions"
pods=/api/v1/tenants/system/namespaces/default/pods

single_run "remove-$NodeName"

# An unreachable tenant partition does not keep the Node alive: the Node goes, and the step asks to be repeated.
unreachable=() canaries=0
for tenant in "${tenants[@]}"; do
  selector="labelSelector=autojoin%2Fcanary%3Dtrue%2Cautojoin%2Fnode%3D$NodeName"
  wait_for 10
  while true; do
    request GET "$(api_url "$tenant")$pods?$selector"
    [[ $http_status != 200 ]] || break
    in_time || break
  done
  if [[ $http_status != 200 ]]; then
    unreachable+=("$tenant (${http_error:-HTTP $http_status})")
    continue
  fi
  while read -r name; do
    request DELETE "$(api_url "$tenant")$pods/$name?gracePeriodSeconds=0"
    case $http_status in
      200 | 202) canaries=$((canaries + 1)) ;;
      404) ;;
      *) unreachable+=("$tenant (deleting $name: ${http_error:-HTTP $http_status})") ;;
    esac
  done < <(jq -r '.items[]?.metadata.name' <<<"$http_body")
done

outcome=absent
if [[ $Scope == canaries ]]; then
  ((${#unreachable[@]} == 0)) || fail ApiUnreachable "no answer about canaries from $(printf '%s; ' "${unreachable[@]}")" \
    "every tenant partition answers" "repeat the step when they do"
  succeed "$(jq -cn --argjson canaries "$canaries" '{node: "kept", canaries: $canaries}')"
fi
api "$Partition" GET "/api/v1/nodes/$NodeName"
if [[ $http_status == 200 ]]; then
  uid=$(jq -r '.metadata.uid // ""' <<<"$http_body")
  if [[ -n $NodeUid && $uid != "$NodeUid" ]]; then
    fail NodeRefused "Node $NodeName has uid $uid" "uid $NodeUid" "another node of that name came later: it is not ours to delete"
  fi
  if [[ -z $NodeUid && ! $NodeName =~ ^i-[0-9a-f]{8,17}$ ]]; then
    fail NodeRefused "no uid was recorded for Node $NodeName, whose name is no instance id" "a uid, or a name that is never used again" \
      "delete the Node by hand if it is the right one"
  fi
  api "$Partition" DELETE "/api/v1/nodes/$NodeName" \
    "$(jq -cn --arg uid "$uid" '{apiVersion: "v1", kind: "DeleteOptions", preconditions: {uid: $uid} }')"
  case $http_status in
    200 | 202 | 404) outcome=deleted ;;
    409) fail NodeRefused "Node $NodeName changed its uid while it was deleted" "uid $uid" "repeat the step with the uid that was recorded" ;;
    *) unexpected "deleting Node $NodeName" ;;
  esac
elif [[ $http_status != 404 ]]; then
  unexpected "reading Node $NodeName"
fi

((${#unreachable[@]} == 0)) || fail ApiUnreachable "no answer about canaries from $(printf '%s; ' "${unreachable[@]}")Node $NodeName: $outcome" \
  "every tenant partition answers" "repeat the step when they do; the Node itself is done"
succeed "$(jq -cn --arg node "$outcome" --argjson canaries "$canaries" '{node: $node, canaries: $canaries}')"
