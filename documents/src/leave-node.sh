#!/bin/bash
# Stop and forget our part of this node: units, configuration, pod network. Best effort and repeatable; the instance is going,
# so what cannot be undone is named and does not fail the step, except a unit that will not stop. Of a master, etcd stops last; its
# data stays, and so does the record of the founding that the data belongs to.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
step=leave-node
((limit_s > 0)) || limit_s=90

parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance; it is the name of the Node'

units="$root/etc/systemd/system"
config="$root/etc/arktos"

single_run node
if imds_open && seen=$(imds instance-id) && [[ $seen != "$InstanceId" ]]; then
  fail InvalidParameter "InstanceId is $InstanceId but this instance is $seen" "the instance's own id" "send the command to the instance that it names"
fi

# In reverse of the starting order, so that no pod loses its network before the kubelet lets go of it.
stopped=()
for unit in arktos-kube-proxy arktos-kubelet arktos-flanneld arktos-kube-scheduler arktos-kube-controller-manager \
  arktos-network-controller arktos-apiserver arktos-etcd; do
  [[ -f $units/$unit.service ]] || continue
  stopped+=("$unit")
  systemctl disable "$unit.service" || log "$unit could not be disabled"
  systemctl stop "$unit.service" || log "$unit did not stop at once"
done
for unit in "${stopped[@]}"; do
  wait_for 30
  until [[ $(unit_state "$unit") =~ ^(inactive|failed|unknown|)$ ]]; do
    in_time || fail UnitFailed "$unit is $(unit_state "$unit") after stop" "$unit stops" "end it by hand; the Node must not be deleted while its kubelet runs"
  done
  rm -f -- "$units/$unit.service"
  systemctl reset-failed "$unit.service" 2>/dev/null || true
done
systemctl daemon-reload || log "daemon-reload failed"

left=()
pod_cidr=$(jq -r '.Network // ""' "$config/net-conf.json" 2>/dev/null) || pod_cidr=""
clean_cni "$pod_cidr" || left+=("pod network")
kept=()
if compgen -G "$root/var/lib/etcd/member/wal/*.wal" >/dev/null; then kept=(! -name etcd); fi
if [[ -d $config ]]; then find "$config" -mindepth 1 -maxdepth 1 "${kept[@]}" -exec rm -rf -- {} + || left+=("configuration"); fi
rmdir "$config" 2>/dev/null || true
rm -rf -- "$root/etc/arktos.previous" || left+=("previous configuration")
succeed "{\"stopped\": ${#stopped[@]}, \"left\": $(json_list "${left[@]}")}"
