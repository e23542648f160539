#!/bin/bash
# What the proofs of workers and of masters share: a route to each other node's pods.
# shellcheck source-path=SCRIPTDIR source=lib.sh
[[ -v exit_codes ]] || . "$(dirname "$0")/lib.sh"
CniBackend=""

# One line per other Ready node that has pods: name|address|pod CIDR.
other_nodes() {
  jq -r --arg self "$InstanceId" '.items[]? | select(.metadata.name != $self and (.spec.podCIDR // "") != "")
    | select(any(.status.conditions[]?; .type == "Ready" and .status == "True"))
    | [.metadata.name, ([.status.addresses[]? | select(.type == "InternalIP") | .address] + [""])[0], .spec.podCIDR] | join("|")' <<<"$http_body"
}

# Only what flanneld wrote since its last start counts: a cured fault must not fail the node for ever.
route_errors() {
  journalctl -u arktos-flanneld.service -n 300 --no-pager 2>/dev/null |
    awk '/autojoin starts arktos-flanneld/ {n = 0} /Error (adding|recovering) route/ {line[n++] = $0} END {for (i = 0; i < n; i++) print line[i]}' |
    tail -n 2 | cut -c1-300
}

check_routes() {
  local name address cidr routes missing errors
  wait_for 45
  while true; do
    api "$Partition" GET /api/v1/nodes
    [[ $http_status == 200 ]] || unexpected "listing the Nodes of $Partition"
    routes=$(ip -4 route show)
    missing=() route_count=0
    while IFS='|' read -r name address cidr; do
      if [[ $CniBackend == host-gw ]]; then
        grep -qF "$cidr via $address " <<<"$routes " || missing+=("$cidr via $address ($name)")
      else
        grep -qF "$cidr " <<<"$routes" || missing+=("$cidr ($name)")
      fi
      route_count=$((route_count + 1))
    done < <(other_nodes)
    errors=$(route_errors)
    if ((${#missing[@]} == 0)) && [[ -z $errors ]]; then return 0; fi
    in_time || fail RoutesMissing "${#missing[@]} of $route_count routes missing: $(printf '%s; ' "${missing[@]:0:5}")flanneld: ${errors:-no error logged}" \
      "a route to the pods of each other Ready node, and no refused route in flanneld's log" \
      "host-gw needs all nodes of $Partition in one subnet; compare the addresses, or use vxlan"
  done
}
