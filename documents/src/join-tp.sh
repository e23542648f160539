#!/bin/bash
# Make this instance the working master of a tenant partition whose etcd and API server run: network controller, kubelet, proxy,
# and scheduler and controller-manager, which are held until every listed resource partition answers.
#
# A tenant partition that cannot see a resource partition deletes the pods of its nodes, and one without any list takes itself for
# the cluster: hence the two are held before each of their starts, also after a reboot, and waiting for peers is a success.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-units.sh
. "$(dirname "$0")/lib-units.sh"
# shellcheck source-path=SCRIPTDIR source=lib-node.sh
. "$(dirname "$0")/lib-node.sh"
# shellcheck source-path=SCRIPTDIR source=lib-master.sh
. "$(dirname "$0")/lib-master.sh"
step=join-tp
((limit_s > 0)) || limit_s=180
ServiceCidr=""

parameter Cluster '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'name of the Arktos cluster'
parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the tenant partition'
parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance; it is the name of the Node'
parameter Zone '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'private hosted zone of the cluster, without a final dot'
parameter TenantPartitions '^([a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49})?$' 'ids of all tenant partitions, oldest first, separated by commas' ''
parameter ResourcePartitions '^([a-z0-9][a-z0-9-]{0,31}(,[a-z0-9][a-z0-9-]{0,31}){0,49})?$' 'ids of all resource partitions, separated by commas' ''
parameter ServiceCidr '^[0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2}$' 'range of the cluster IPs of the tenant partition'
parameter BinDir '^/[A-Za-z0-9_./-]{1,200}$' 'folder of the golden image that holds the Arktos binaries' '/opt/arktos/bin'

IFS=, read -r -a resources <<<"$ResourcePartitions"
our_units=(arktos-network-controller arktos-kubelet arktos-kube-proxy arktos-kube-scheduler arktos-kube-controller-manager)
held_units=(arktos-kube-scheduler arktos-kube-controller-manager)

write_hold() {
  cat >"$work/config/hold.sh" <<'HOLD'
#!/bin/bash
# Ends when every partition of the given kubeconfigs answers /healthz with ok; a kubeconfig that is missing is waited for, too.
(($# > 0)) || {
  echo "autojoin: no resource partition is declared: waiting until this master is joined again with one"
  exec sleep infinity
}
told=
while true; do
  silent=
  for kubeconfig in "$@"; do
    server=$(jq -r '.clusters[0].cluster.server' "$kubeconfig" 2>/dev/null)
    [[ $(curl -s -m 5 --noproxy '*' "$server/healthz" 2>/dev/null) == ok ]] || silent+=" ${kubeconfig##*/}"
  done
  [[ -n $silent ]] || exit 0
  [[ $silent == "$told" ]] || echo "autojoin: waiting for$silent"
  told=$silent
  sleep 1
done
HOLD
}

write_configuration() {
  local peers own_config="$config/$Partition.kubeconfig" hold
  write_kubeconfigs "${resources[@]}"
  peers=$REPLY
  write_master tp
  write_hold
  hold="TimeoutStartSec=infinity
ExecStartPre=/bin/bash $config/hold.sh ${peers//,/ }"
  write_unit arktos-network-controller "Arktos network controller of $Partition" "Environment=AUTOJOIN_PARTITION=$Partition" \
    "$root$BinDir/arktos-network-controller" --kubeconfig="$own_config" --kube-apiserver-ip="${own[address]}" --resource-name-salt="$Partition"
  write_kubelet "" "$pki/client-ca.crt"
  write_kube_proxy ""
  write_process arktos-kube-scheduler "Arktos scheduler of $Partition" "$hold" kube-scheduler \
    --leader-elect=false --kubeconfig="$own_config" --resource-providers="$peers"
  write_process arktos-kube-controller-manager "Arktos controller-manager of $Partition" "$hold" kube-controller-manager \
    --leader-elect=false --kubeconfig="$own_config" --resource-providers="$peers" \
    '--controllers=*,-daemonset,-nodelifecycle,-nodeipam,-ttl' --service-cluster-ip-range="$ServiceCidr" \
    --service-account-private-key-file="$pki/service-account.key" --root-ca-file="$pki/server-ca.crt" --use-service-account-credentials
}

# finish ALREADY: the held units come up by themselves; where nobody is waited for, they do so now.
finish() {
  not_healthy "${resources[@]}"
  if ((${#waiting[@]} == 0 && ${#resources[@]} > 0)); then peers_answer=yes; fi
  await_units
  rm -rf -- "$previous"
  succeed "$(jq -cn --argjson already "$1" --argjson waiting "$(json_list "${waiting[@]}")" '{already: $already, waiting_for: $waiting}')"
}

# ---- the run -----------------------------------------------------------------------------------------------------------
single_run node
own_instance "$InstanceId"
check_binaries hyperkube arktos-network-controller
check_pki client-ca.crt server-ca.crt service-account.key
api_healthy "$Partition"
write_configuration
if same_configuration && all_good; then finish true; fi

for unit in "${held_units[@]}"; do
  if [[ $(unit_state "$unit") == active ]]; then serving=yes; fi
done
check_peers "${resources[@]}"
keep_previous
changed=yes
install_configuration
mkdir -p "$root/var/lib/kubelet"
for unit in "${our_units[@]}"; do start_unit "$unit"; done
finish false
