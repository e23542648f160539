#!/bin/bash
# What the masters of both kinds share: who their peers are, and the rules by which a list of peers is applied.
# shellcheck source-path=SCRIPTDIR source=lib.sh
[[ -v exit_codes ]] || . "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-units.sh
[[ -v units ]] || . "$(dirname "$0")/lib-units.sh"
# shellcheck source-path=SCRIPTDIR source=lib-node.sh
[[ -v conflist ]] || . "$(dirname "$0")/lib-node.sh"
Cluster="" TenantPartitions="" ResourcePartitions=""

pki="$root/etc/arktos/pki"

check_pki() { # NAME...: start-api has put the keys here
  local name
  for name in "$@"; do
    [[ -s $pki/$name ]] || fail UnitFailed "$pki/$name is missing" "the keys that start-api puts there" "start the API server of $Partition first"
  done
}

# A list that changes while one of its partitions is silent harms those that work: a tenant partition would hold its scheduler
# back, a resource partition would keep its new nodes tainted. A master that serves keeps its old list until all answer.
check_peers() { # PARTITION...
  if [[ -n $serving ]]; then api_healthy "$@"; fi
}

write_master() { # KIND: what this master was joined with
  jq -n --arg cluster "$Cluster" --arg partition "$Partition" --arg kind "$1" --arg node "$InstanceId" --arg tenants "$TenantPartitions" \
    --arg resources "$ResourcePartitions" '{cluster: $cluster, partition: $partition, kind: $kind, node: $node,
      tenant_partitions: ($tenants | split(",")), resource_partitions: ($resources | split(","))}' >"$work/config/master.json"
}
