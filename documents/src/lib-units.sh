#!/bin/bash
# What the scripts that configure a node share: a folder of configuration and units are written beside the old ones, compared,
# installed whole, and put back when the run fails. Each script has its own folder: files of other folders are not touched.
# shellcheck source-path=SCRIPTDIR source=lib.sh
[[ -v exit_codes ]] || . "$(dirname "$0")/lib.sh"
BinDir="${BinDir-}"

config="$root/etc/arktos" # of masters: the files of etcd and of the API server are in folders below it
previous="$root/etc/arktos.previous"
units="$root/etc/systemd/system"

# ---- checks ------------------------------------------------------------------------------------------------------------
check_binaries() { # NAME...
  local name missing=""
  for name in "$@"; do
    [[ -x $root$BinDir/$name ]] || missing+=" $name"
  done
  [[ -z $missing ]] || fail BinariesMissing "$BinDir lacks$missing" "$* in $BinDir" \
    "bake them into the image, or name their folder in the parameter BinDir; nothing is downloaded"
}

check_ports() { # UNIT PORT...: while the unit does not run, nobody else may listen there
  local unit=$1 port
  shift
  [[ $(unit_state "$unit") != active ]] || return 0
  for port in "$@"; do
    if (exec 4<>"/dev/tcp/${own[address]}/$port") 2>/dev/null; then
      fail PortInUse "${own[address]}:$port takes connections although $unit is $(unit_state "$unit")" "a free port" \
        "find the process with 'ss -ltnp' and stop it; a partition that was made by hand is adopted, not joined"
    fi
  done
}

# ---- files -------------------------------------------------------------------------------------------------------------
same_files() { # FOLDER OTHER: both have the same plain files
  local file
  for file in "$1"/*; do cmp -s "$file" "$2/${file##*/}" || return 1; done
  for file in "$2"/*; do [[ ! -f $file || -f $1/${file##*/} ]] || return 1; done
}

replace_files() { # FROM TO: each file appears whole or not at all; plain files that FROM does not have go, folders stay
  mkdir -p "$2"
  chmod 0700 "$2"
  local file name
  for file in "$1"/*; do
    [[ -f $file ]] || continue
    name="${file##*/}"
    cp "$file" "$2/.$name.new"
    chmod 0600 "$2/.$name.new"
    mv -f "$2/.$name.new" "$2/$name"
  done
  for file in "$2"/* "$2"/.*.new; do
    [[ ! -f $file || -f $1/${file##*/} ]] || rm -f -- "$file"
  done
}

# write_unit UNIT DESCRIPTION SERVICE COMMAND...; SERVICE: more lines of the section, which overrule those before them
write_unit() {
  local unit=$1 description=$2 service=$3
  shift 3
  mkdir -p "$work/units"
  cat >"$work/units/$unit.service" <<UNIT
[Unit]
Description=$description
Wants=network-online.target
After=network-online.target containerd.service

[Service]
Type=simple
Restart=always
RestartSec=2
ExecStartPre=/bin/echo autojoin starts $unit
$service
ExecStart=$*

[Install]
WantedBy=multi-user.target
UNIT
  chmod 0644 "$work/units/$unit.service"
}

features() { printf 'AllAlpha=false,WorkloadInfoDefaulting=true,QPSDoubleGCController=true,QPSDoubleRSController=true,MandatoryArktosNetwork=true'; }

write_process() { # UNIT DESCRIPTION SERVICE PROCESS FLAG...: a process of hyperkube
  local unit=$1 description=$2 service=$3 process=$4
  shift 4
  write_unit "$unit" "$description" "$service" "$root$BinDir/hyperkube" "$process" --v=3 "$@" --feature-gates="$(features)"
}

same_configuration() {
  local unit
  same_files "$work/config" "$config" || return 1
  for unit in "${our_units[@]}"; do
    cmp -s "$work/units/$unit.service" "$units/$unit.service" || return 1
  done
}

keep_previous() { # for undo; the mark is written last
  rm -rf -- "$previous"
  [[ -d $config ]] || return 0
  mkdir -p "$previous/units"
  replace_files "$config" "$previous/config"
  local unit
  for unit in "${our_units[@]}"; do
    [[ ! -f $units/$unit.service ]] || cp -a "$units/$unit.service" "$previous/units/"
  done
  touch "$previous/complete"
}

install_configuration() {
  local unit
  replace_files "$work/config" "$config"
  mkdir -p "$units"
  for unit in "${our_units[@]}"; do
    cp "$work/units/$unit.service" "$units/.$unit.new"
    chmod 0644 "$units/.$unit.new"
    mv -f "$units/.$unit.new" "$units/$unit.service"
  done
  systemctl daemon-reload
}

# ---- starting, and what is put back when a run fails after it changed something -----------------------------------------
changed="" serving="" restored=""
started=()

restart_unit() { # a unit that waits for peers comes up by itself
  if may_wait "$1"; then systemctl restart --no-block "$1.service"; else systemctl restart "$1.service"; fi
}

# serves UNIT: it runs and is healthy (which the script defines) within a short while; what is only slow is not restarted.
serves() {
  [[ $(unit_state "$1") == active ]] || return 1
  wait_for 15
  until healthy; do in_time || return 1; done
}

start_unit() {
  started+=("$1")
  systemctl enable "$1.service"
  restart_unit "$1" || fail UnitFailed "$1 does not start: $(last_log "$1")" "$1 starts" "read 'journalctl -u $1' on the node"
}

put_back() { :; } # a script may define what else belongs to the previous configuration
undo() {
  [[ -n $changed && -z $restored ]] || return 0
  restored=yes
  local unit
  if [[ -n $serving ]]; then
    if [[ -f $previous/complete ]]; then
      replace_files "$previous/config" "$config"
      for unit in "${our_units[@]}"; do
        [[ ! -f $previous/units/$unit.service ]] || cp -a "$previous/units/$unit.service" "$units/$unit.service"
      done
    fi
    put_back
    systemctl daemon-reload
    for unit in "${our_units[@]}"; do restart_unit "$unit"; done
    undone='{"serving_again": true}'
  else
    for unit in "${started[@]}"; do
      systemctl stop "$unit.service"
      systemctl disable "$unit.service"
    done
    undone="{\"stopped\": $(json_list "${started[@]}")}"
  fi
}
