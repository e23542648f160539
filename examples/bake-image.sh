#!/bin/bash
# Make a plain Ubuntu or Debian machine the golden image of Autojoin, or check one. docs/golden-image.md says how to use it.
#
#   bake-image.sh --from FOLDER|TARBALL [--canary IMAGE.tar] [--canary-name NAME] [--install-packages]
#   bake-image.sh --check
#
# --from              a folder, or a tarball of one, with the binaries and a SHA256SUMS that names each of them
# --canary            an image archive for containerd; --canary-name is its name in the cluster's configuration
# --install-packages  install what is missing from the distribution's packages; without it, it is only named
# --check             change nothing: print everything that is missing at once
#
# AUTOJOIN_ROOT       another root than / (a chroot, a mounted disk); empty on a machine
#
# Nothing is changed before every check of the source and of the machine has passed. May be repeated. No binary is ever downloaded.
# Exit code: 0 good, 1 something is missing or wrong, 2 wrong usage.
set -euo pipefail

root="${AUTOJOIN_ROOT:-}"
root="${root%/}"
readonly root
readonly bin="$root/opt/arktos/bin"
readonly manifest="$root/opt/arktos/image.json"
readonly modules="$root/etc/modules-load.d/autojoin.conf"
readonly settings="$root/etc/sysctl.d/90-autojoin.conf"
readonly socket="$root/run/containerd/containerd.sock"
readonly binaries=(hyperkube arktos-network-controller etcd etcdctl flanneld flannel bridge host-local loopback portmap)
readonly oldest_agent=3.3.2746.0
readonly oldest_etcd=3.4.0
readonly modules_text=$'overlay\nbr_netfilter'
readonly settings_text=$'net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1'
# Command on the node = package that has it; without a package it is for the operator to install.
declare -Ar packages=([curl]=curl [jq]=jq [openssl]=openssl [ip]=iproute2 [iptables]=iptables [conntrack]=conntrack [flock]=util-linux
  [diff]=diffutils [containerd]=containerd [systemctl]=systemd [aws]="" [amazon-ssm-agent]="")

source_folder="" canary="" canary_name="autojoin/canary:1" install="" only_check=""
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

problems=()
problem() { problems+=("$*"); } # seen: expected: to do
report() { # WHAT: end with all problems, if there are any
  ((${#problems[@]} > 0)) || return 0
  printf '%s: %d problem(s)\n' "$1" "${#problems[@]}" >&2
  printf '  - %s\n' "${problems[@]}" >&2
  exit 1
}
usage() {
  printf 'bake-image.sh: %s\n' "$1" >&2
  sed -n '4,5s/^# *//p' "$0" >&2
  exit 2
}
sha256() { sha256sum <"$1" | cut -d ' ' -f 1; }

# ---- what is on the machine --------------------------------------------------------------------------------------------
where() { # COMMAND: its path under the root, or nothing
  local folder
  for folder in usr/local/sbin usr/local/bin usr/sbin usr/bin sbin bin snap/bin snap/amazon-ssm-agent/current; do
    if [[ -x $root/$folder/$1 || -L $root/$folder/$1 ]]; then
      printf '%s\n' "$root/$folder/$1"
      return
    fi
  done
}
version_of() { # FILE ARGUMENT...: the first version number that it prints, or nothing
  local text
  text=$(timeout 10 "$@" 2>&1 </dev/null) || true
  [[ ! $text =~ [0-9]+(\.[0-9]+)+ ]] || printf '%s\n' "${BASH_REMATCH[0]}"
}
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; } # VERSION OLDEST
files_in() { [[ -d $1 ]] && find "$1" -mindepth 1 -print -quit | grep -q .; }

check_commands() {
  local command version
  for command in "${!packages[@]}"; do
    [[ -z $(where "$command") ]] || continue
    if [[ -n ${packages[$command]} ]]; then
      problem "no command $command: install the package ${packages[$command]}, or use --install-packages"
    elif [[ $command == aws ]]; then
      problem "no command aws: install the AWS CLI (package awscli where the distribution has it, or AWS's installer)"
    else
      problem "no SSM agent: install amazon-ssm-agent $oldest_agent or newer from AWS's package"
    fi
  done
  command=$(where amazon-ssm-agent)
  if [[ -n $command ]]; then
    version=$(version_of "$command" -version)
    at_least "${version:-0}" "$oldest_agent" || problem "SSM agent of version ${version:-unknown}: it has to be $oldest_agent or newer; update it"
  fi
}

# What makes a machine a node, holds a secret, or is in the way of a node. Nothing of it is deleted here: it may be the only copy.
check_plain() {
  local path name
  ! files_in "$root/var/lib/etcd" ||
    problem "/var/lib/etcd has data: an image must have none, or every instance starts with it; bake on a plain machine"
  for path in /etc/arktos /etc/arktos.previous /var/run/kubernetes /run/kubernetes /var/lib/kubelet/pki; do
    ! files_in "$root$path" || problem "$path has files: this machine is, or was, a node, and they may hold its keys; bake on a plain machine"
  done
  for path in "$root"/etc/systemd/system/arktos-*.service; do
    [[ ! -e $path ]] || problem "${path#"$root"} is there: this machine is, or was, a node; bake on a plain machine"
  done
  for name in etcd kubelet; do
    [[ -z $(find "$root/etc/systemd/system" -path "*.wants/$name.service" 2>/dev/null) ]] ||
      problem "$name.service starts at boot: Autojoin starts its own; disable it"
  done
  ! grep -qsE '^\s*disabled_plugins\s*=.*"cri"' "$root/etc/containerd/config.toml" ||
    problem "/etc/containerd/config.toml disables cri: the kubelet needs it; take it out of disabled_plugins"
  for path in "$root/root/.aws/credentials" "$root"/home/*/.aws/credentials; do
    [[ ! -e $path ]] || problem "${path#"$root"} is there: an image carries no credentials; remove it"
  done
}

# ---- the source --------------------------------------------------------------------------------------------------------
unpack_source() {
  local sums
  if [[ -f $source_folder ]]; then
    mkdir "$work/source"
    tar -xf "$source_folder" --no-same-owner -C "$work/source"
    sums=$(find "$work/source" -maxdepth 2 -name SHA256SUMS -type f -print -quit)
    source_folder="${sums:+${sums%/*}}"
    source_folder="${source_folder:-$work/source}"
  fi
  [[ -d $source_folder ]] || problem "$source_folder: no such folder or tarball"
  [[ -f $source_folder/SHA256SUMS ]] || problem "the source has no SHA256SUMS: make one with 'sha256sum * > SHA256SUMS' where the binaries come from"
}
check_source() {
  local name expected seen
  for name in "${binaries[@]}"; do
    if [[ ! -f $source_folder/$name || -L $source_folder/$name ]]; then
      problem "the source has no $name: put the file into it"
      continue
    fi
    expected=$(awk -v name="$name" '{sub(/^[*]?([.]\/)?/, "", $2)} $2 == name {print tolower($1); exit}' "$source_folder/SHA256SUMS")
    seen=$(sha256 "$source_folder/$name")
    if [[ -z $expected ]]; then
      problem "$name is not in SHA256SUMS: only files with a known digest are installed"
    elif [[ $seen != "$expected" ]]; then
      problem "$name has the digest $seen, SHA256SUMS says $expected: fetch it again from where you trust it"
    fi
  done
}
check_source_etcd() { # the functions speak etcd's gateway under /v3; a file for another processor is found here too
  local version
  cp -- "$source_folder/etcd" "$work/etcd"
  chmod 0755 "$work/etcd"
  version=$(version_of "$work/etcd" --version)
  at_least "${version:-0}" "$oldest_etcd" ||
    problem "etcd ${version:-tells no version (built for another processor?)}: it has to be $oldest_etcd or newer"
}
full_name() { # IMAGE: the name that containerd keeps it under
  local first="${1%%/*}"
  if [[ $1 != */* ]]; then
    printf 'docker.io/library/%s\n' "$1"
  elif [[ $first == *[.:]* || $first == localhost ]]; then
    printf '%s\n' "$1"
  else
    printf 'docker.io/%s\n' "$1"
  fi
}
images() { ctr --address "$socket" -n k8s.io images "$@"; }

# ---- what baking changes -----------------------------------------------------------------------------------------------
install_packages() {
  local command missing=()
  for command in "${!packages[@]}"; do
    [[ -n $(where "$command") || -z ${packages[$command]} ]] || missing+=("${packages[$command]}")
  done
  ((${#missing[@]} > 0)) || return 0
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
  [[ -z $root ]] || apt=(chroot "$root" "${apt[@]}")
  "${apt[@]}" update
  "${apt[@]}" install --yes --no-install-recommends "${missing[@]}"
}
put_file() { # FILE MODE, text on stdin: it appears whole or not at all
  mkdir -p "${1%/*}"
  cat >"$1.new"
  chmod "$2" "$1.new"
  mv -f "$1.new" "$1"
}
install_binaries() {
  local name
  for name in "${binaries[@]}"; do
    [[ -x $bin/$name && $(sha256 "$bin/$name") == $(sha256 "$source_folder/$name") ]] || put_file "$bin/$name" 0755 <"$source_folder/$name"
  done
}
import_canary() {
  images import "$canary" >&2
  images ls -q | grep -qxF "$(full_name "$canary_name")" || {
    problem "$canary holds no image $(full_name "$canary_name"): containerd has now $(images ls -q | tr '\n' ' '); name it with --canary-name"
    report "not baked"
  }
}
configure_kernel() {
  put_file "$modules" 0644 <<<"$modules_text"
  put_file "$settings" 0644 <<<"$settings_text"
  [[ ! -f $root/etc/fstab ]] || sed -i -E 's/^([^#[:space:]]\S*\s+\S+\s+swap\s)/# no swap on a node: \1/' "$root/etc/fstab"
}
clean() { # what a new instance has to make for itself
  rm -rf -- "$root"/etc/cni/net.d/* "$root"/var/lib/cni/* "$root/run/flannel"
  : >"$root/etc/machine-id"
  [[ -z $(where cloud-init) ]] || rm -f -- "$root"/etc/ssh/ssh_host_* # it makes new ones; without it nothing would
  [[ ! -f $root/var/lib/dbus/machine-id || -L $root/var/lib/dbus/machine-id ]] || rm -f -- "$root/var/lib/dbus/machine-id"
}
write_manifest() { # no time in it: baking the same again writes the same
  local name version entries="$work/entries" canary_json
  for name in "${binaries[@]}"; do
    case $name in
      hyperkube) version=$(version_of "$bin/$name" kube-apiserver --version) ;;
      arktos-network-controller | etcd | flanneld) version=$(version_of "$bin/$name" --version) ;;
      etcdctl) version=$(ETCDCTL_API=3 version_of "$bin/$name" version) ;;
      *) version="" ;; # CNI plugins only speak CNI
    esac
    jq -n --arg name "$name" --arg sha256 "$(sha256 "$bin/$name")" --arg version "$version" \
      '{($name): ({sha256: $sha256} + (if $version == "" then {} else {version: $version} end))}'
  done >"$entries"
  canary_json=null
  if [[ -n $canary ]]; then
    canary_json=$(jq -n --arg image "$canary_name" --arg sha256 "$(sha256 "$canary")" '{image: $image, archive_sha256: $sha256}')
  elif [[ -f $manifest ]]; then
    canary_json=$(jq .canary "$manifest")
  fi
  jq -s --arg agent "$(version_of "$(where amazon-ssm-agent)" -version)" --arg containerd "$(version_of "$(where containerd)" --version)" \
    --arg system "$(sed -n 's/^PRETTY_NAME="\(.*\)"$/\1/p' "$root/etc/os-release" 2>/dev/null || true)" --argjson canary "$canary_json" \
    '{system: $system, ssm_agent: $agent, containerd: $containerd, canary: $canary, binaries: add}' "$entries" >"$work/image.json"
  put_file "$manifest" 0644 <"$work/image.json"
}

# ---- the check of an image ---------------------------------------------------------------------------------------------
check_binaries() {
  local name known="" baked=yes
  [[ -f $manifest ]] || baked=""
  [[ -n $baked ]] || problem "/opt/arktos/image.json is not there: this image was not baked by this script, or not to the end; bake it"
  for name in "${binaries[@]}"; do
    if [[ ! -x $bin/$name ]]; then
      problem "/opt/arktos/bin/$name is not there, or cannot be run: bake the image again"
      continue
    fi
    [[ -z $baked ]] || known=$(jq -r --arg name "$name" '.binaries[$name].sha256 // ""' "$manifest")
    [[ -z $baked || $(sha256 "$bin/$name") == "$known" ]] || problem "/opt/arktos/bin/$name is not the file of image.json: bake the image again"
  done
}
check_system() {
  local path
  [[ -f $modules && $(<"$modules") == "$modules_text" ]] || problem "${modules#"$root"} does not load br_netfilter and overlay: bake the image again"
  [[ -f $settings && $(<"$settings") == "$settings_text" ]] || problem "${settings#"$root"} does not switch forwarding on: bake the image again"
  ! grep -qsE '^[^#[:space:]]\S*\s+\S+\s+swap\s' "$root/etc/fstab" || problem "/etc/fstab has swap: the kubelet wants none; bake the image again"
  for path in /etc/cni/net.d /var/lib/cni /run/flannel; do
    ! files_in "$root$path" || problem "$path has files: another pod network's configuration; bake the image again"
  done
}
check_canary() { # where containerd runs; its store cannot be read without it
  [[ -f $manifest && -S $socket ]] || return 0
  local image
  image=$(jq -r '.canary.image // ""' "$manifest")
  [[ -z $image ]] || images ls -q | grep -qxF "$(full_name "$image")" || problem "containerd has no image $(full_name "$image"): bake again with --canary"
}
check_at_rest() { # of an image that does not run: an instance has made its own id
  [[ ! -s $root/etc/machine-id ]] || problem "/etc/machine-id is set: all instances would share it; bake the image again"
}
check_running() {
  local unit active=""
  systemctl is-active --quiet containerd.service 2>/dev/null || problem "containerd does not run: systemctl enable --now containerd"
  for unit in amazon-ssm-agent.service snap.amazon-ssm-agent.amazon-ssm-agent.service; do
    if systemctl is-active --quiet "$unit" 2>/dev/null; then active=yes; fi
  done
  [[ -n $active ]] || problem "the SSM agent does not run: enable its unit"
  [[ $(wc -l </proc/swaps) -le 1 ]] || problem "swap is on: swapoff -a, and look for swap units"
  [[ $(</proc/sys/net/ipv4/ip_forward) == 1 ]] || problem "net.ipv4.ip_forward is 0: boot the image, or sysctl --system"
}

# ---- the run -----------------------------------------------------------------------------------------------------------
while (($# > 0)); do
  case $1 in
    --from | --canary | --canary-name)
      (($# > 1)) && [[ -n $2 ]] || usage "$1 needs a value"
      case $1 in
        --from) source_folder=$2 ;;
        --canary) canary=$2 ;;
        *) canary_name=$2 ;;
      esac
      shift
      ;;
    --install-packages) install=yes ;;
    --check) only_check=yes ;;
    *) usage "unknown argument $1" ;;
  esac
  shift
done
[[ -z $root || -d $root ]] || usage "AUTOJOIN_ROOT=$root is no folder"
[[ -n $root || $EUID == 0 ]] || usage "run it as root, or set AUTOJOIN_ROOT"

if [[ -n $only_check ]]; then
  [[ -z $source_folder$canary$install ]] || usage "--check stands alone"
  check_commands
  check_plain
  if command -v jq >/dev/null; then
    check_binaries
    check_canary
  else
    problem "no jq here to read image.json"
  fi
  check_system
  if [[ -n $root ]]; then check_at_rest; else check_running; fi
  report "not a golden image"
  printf 'good: %s\n' "$(jq -c '{system, ssm_agent, containerd, canary: .canary.image, etcd: .binaries.etcd.version}' "$manifest")"
  exit 0
fi

[[ -n $source_folder ]] || usage "--from is not given"
check_plain
unpack_source
report "not baked, nothing was changed"
check_source
[[ -z $canary || -f $canary ]] || problem "$canary: no such file"
report "not baked, nothing was changed"
check_source_etcd
[[ -n $install ]] || check_commands
report "not baked, nothing was changed"

[[ -z $install ]] || install_packages
check_commands
command -v jq >/dev/null || problem "no jq here: install it on the machine that bakes"
if [[ -n $canary ]]; then
  command -v ctr >/dev/null || problem "no command ctr here to import the canary image: install containerd"
  [[ -S $socket ]] || problem "${socket#"$root"} is not there: start containerd for this root, or load the canary image later, on the instances"
fi
report "not baked, only packages may have been installed"
install_binaries
[[ -z $canary ]] || import_canary
configure_kernel
clean
write_manifest
check_commands
check_plain
check_binaries
check_system
check_at_rest
report "baked, but not good"
[[ $(jq .canary "$manifest") != null ]] ||
  printf 'note: no canary image; without one that the configuration names, no worker is verified\n' >&2
printf 'baked: %s\n' "${manifest#"$root"}"
