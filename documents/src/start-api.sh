#!/bin/bash
# Start the API server of this partition on its master: keys from Secrets Manager, made once by the founder; certificates signed here.
#
# The keys of a partition whose etcd has objects are never made anew: tokens and certificates that are out there depend on them.
# An API server that serves is not restarted: a tenant partition that cannot see a resource partition deletes the pods of its nodes.
# What changed takes effect at its next start.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib-units.sh
. "$(dirname "$0")/lib-units.sh"
# shellcheck source-path=SCRIPTDIR source=lib-secret.sh
. "$(dirname "$0")/lib-secret.sh"
step=start-api
((limit_s > 0)) || limit_s=180
Kind="" ServiceCidr=""

parameter Cluster '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'name of the Arktos cluster'
parameter Partition '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$' 'id of the partition'
parameter InstanceId '^i-[0-9a-f]{8,17}$' 'id of this instance'
parameter Zone '^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$' 'private hosted zone of the cluster, without a final dot'
parameter Kind '^(tp|rp)$' 'kind of the partition: tp or rp'
parameter ServiceCidr '^([0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2})?$' 'range of the cluster IPs of a tenant partition; empty for a resource partition' ''
parameter BinDir '^/[A-Za-z0-9_./-]{1,200}$' 'folder of the golden image that holds the Arktos binaries' '/opt/arktos/bin'

our_units=(arktos-apiserver)
config="$root/etc/arktos/pki"
days=3650

healthy() { request GET "http://${own[address]}:8080/healthz" && [[ $http_status == 200 && $http_body == ok ]]; }

# ---- checks: nothing is changed in this part ---------------------------------------------------------------------------
check_kind() {
  [[ $Kind == rp || -n $ServiceCidr ]] || fail InvalidParameter "ServiceCidr is empty" "the service range of tenant partition $Partition" \
    "declare service_cidr of the partition"
}

check_tools() {
  local tool
  for tool in openssl aws; do
    command -v "$tool" >/dev/null || fail BinariesMissing "$tool is not on the PATH" "openssl and aws in the image" "bake them into the image"
  done
}

# has_objects: whether a partition lives in this etcd already.
has_objects() {
  local from to
  from=$(printf '/registry/' | base64) to=$(printf '/registry0' | base64)
  request POST "$etcd/v3/kv/range" "{\"key\": \"$from\", \"range_end\": \"$to\", \"limit\": \"1\", \"keys_only\": true}"
  [[ $http_status == 200 ]] || fail UnitFailed "etcd at $etcd: ${http_error:-HTTP $http_status} $(last_log arktos-etcd)" "etcd answers" \
    "start etcd first: read 'journalctl -u arktos-etcd' on the node"
  [[ $(jq -r '.kvs // [] | length' <<<"$http_body") != 0 ]]
}

# ---- keys and certificates ---------------------------------------------------------------------------------------------
ssl() { # ARGUMENT...: openssl, which says nothing unless it fails
  openssl "$@" >"$work/openssl.out" 2>&1 || fail ScriptFailed "openssl $1: $(tail -n 2 "$work/openssl.out" | tr '\n' ' ')" \
    "openssl 1.1 or 3" "look at the openssl of the image"
}

make_keys() { # FOLDER
  local ca
  mkdir -p "$1"
  for ca in client-ca server-ca request-header-ca; do
    ssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -days "$days" -config "$work/openssl.cnf" -extensions ca \
      -subj "/CN=$Cluster-$Partition-$ca" -keyout "$1/$ca.key" -out "$1/$ca.crt"
  done
  ssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out "$1/service-account.key"
  ssl pkey -in "$1/service-account.key" -pubout -out "$1/service-account.pub"
}

get_keys() { # sets secret: created or read
  secret="read"
  if ! has_objects; then
    make_keys "$work/made"
    create_secret "$work/made"
    rm -rf -- "$work/made"
    [[ $REPLY != created ]] || secret=created
  fi
  read_secret "$work/keys"
}

# certificate NAME CA SUBJECT EXTENSIONS: a key pair of this node, kept while it fits and is valid for another month.
certificate() {
  local new="$work/config/$1" old="$config/$1" ca="$work/keys/$2"
  printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature "$4" >"$new.ext"
  if cmp -s "$new.ext" "$old.ext" && openssl verify -CAfile "$ca.crt" "$old.crt" >/dev/null 2>&1 &&
    openssl x509 -checkend $((30 * 86400)) -noout -in "$old.crt" >/dev/null 2>&1; then
    cp "$old.crt" "$new.crt"
    cp "$old.key" "$new.key"
    return 0
  fi
  ssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -config "$work/openssl.cnf" -subj "$3" -keyout "$new.key" -out "$work/request.csr"
  ssl x509 -req -in "$work/request.csr" -CA "$ca.crt" -CAkey "$ca.key" -set_serial "0x$(openssl rand -hex 16)" -days "$days" -sha256 \
    -extfile "$new.ext" -out "$new.crt"
}

write_configuration() {
  local names name first=""
  mkdir -p "$work/config"
  for name in client-ca.crt server-ca.crt request-header-ca.crt service-account.key service-account.pub; do cp "$work/keys/$name" "$work/config/$name"; done
  names="DNS:api.$Partition.$Zone,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:${own[address]},IP:127.0.0.1"
  if [[ -n $ServiceCidr ]]; then
    address_number "${ServiceCidr%/*}"
    first=$((REPLY + 1))
    names+=",IP:$((first >> 24 & 255)).$((first >> 16 & 255)).$((first >> 8 & 255)).$((first & 255))"
  fi
  certificate serving-kube-apiserver server-ca "/CN=api.$Partition.$Zone" "extendedKeyUsage=serverAuth
subjectAltName=$names"
  certificate client-kube-apiserver client-ca /CN=system:kube-apiserver extendedKeyUsage=clientAuth
  certificate client-auth-proxy request-header-ca /CN=system:auth-proxy extendedKeyUsage=clientAuth
  write_process arktos-apiserver "Arktos API server of $Partition" "Environment=AUTOJOIN_PARTITION=$Partition
LimitNOFILE=65536" kube-apiserver --etcd-servers="$etcd" --storage-backend=etcd3 \
    --insecure-bind-address="${own[address]}" --insecure-port=8080 \
    --bind-address="${own[address]}" --secure-port=6443 --advertise-address="${own[address]}" \
    --tls-cert-file="$config/serving-kube-apiserver.crt" --tls-private-key-file="$config/serving-kube-apiserver.key" \
    --client-ca-file="$config/client-ca.crt" --service-account-key-file="$config/service-account.pub" --service-account-lookup=true \
    --kubelet-client-certificate="$config/client-kube-apiserver.crt" --kubelet-client-key="$config/client-kube-apiserver.key" \
    --requestheader-client-ca-file="$config/request-header-ca.crt" --requestheader-allowed-names=system:auth-proxy \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$config/client-auth-proxy.crt" --proxy-client-key-file="$config/client-auth-proxy.key" \
    --authorization-mode=Node,RBAC --allow-privileged=true ${ServiceCidr:+"--service-cluster-ip-range=$ServiceCidr"}
}

outcome() { jq -cn --argjson already "$1" --arg secret "$secret" '{already: $already, secret: $secret}'; }

# ---- the run -----------------------------------------------------------------------------------------------------------
single_run node
own_instance "$InstanceId"
etcd="http://${own[address]}:2379"
check_kind
check_binaries hyperkube
check_tools
check_ports arktos-apiserver 8080 6443
cat >"$work/openssl.cnf" <<'CNF'
[req]
distinguished_name = subject
prompt = no
[subject]
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign,digitalSignature
subjectKeyIdentifier = hash
CNF
get_keys
publish_client_ca "$work/keys/client-ca.crt"
write_configuration
rm -rf -- "$work/keys"

if serves arktos-apiserver; then
  if same_configuration; then succeed "$(outcome true)"; fi
  log "the API server serves and is not restarted; what changed takes effect at its next start"
  install_configuration
  systemctl enable arktos-apiserver.service
  succeed "$(outcome false)"
fi
if [[ $(unit_state arktos-apiserver) == active ]]; then serving=yes; fi
keep_previous
changed=yes
install_configuration
start_unit arktos-apiserver
wait_for 90
until healthy; do
  fail_if_broken arktos-apiserver
  in_time || fail UnitFailed "http://${own[address]}:8080/healthz: ${http_error:-HTTP $http_status ${http_body:0:200}} $(last_log arktos-apiserver)" \
    "the API server is healthy" "read 'journalctl -u arktos-apiserver' on the node"
done
rm -rf -- "$previous"
succeed "$(outcome false)"
