#!/bin/bash
# Prolog= of slurm.conf: starts a daemon for the job on this node, as the user of the job, and waits until it listens.
# The exit code is always 0, because Slurm drains the node of a Prolog that fails. Without a daemon, the client of the
# job starts one. The reason is in RUN_DIR/JOB.log.
set -u

conf=${FEEDD_SLURM_CONF:-/etc/feedd/feedd-slurm.conf}
[[ -r $conf ]] || exit 0
# shellcheck source=feedd-slurm.conf
source "$conf"

job=${SLURM_JOB_ID:-}
uid=${SLURM_JOB_UID:-}
[[ $job =~ ^[0-9]+$ && $uid =~ ^[0-9]+$ ]] || exit 0
[[ -z $PARTITIONS || " $PARTITIONS " == *" ${SLURM_JOB_PARTITION:-} "* ]] || exit 0

gid=$(id -g "$uid") || exit 0
home=$(getent passwd "$uid" | cut -d: -f6)
socket=$RUN_DIR/$job/feedd.sock
log=$RUN_DIR/$job.log

install -d -m 0755 "$RUN_DIR" "$CACHE_ROOT" || exit 0
install -d -m 0700 -o "$uid" -g "$gid" "$RUN_DIR/$job" "$CACHE_ROOT/$job" || exit 0

peers=()
nodes=${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}
if [[ -n ${PEERS_PORT:-} && -n $nodes ]]; then
  # All nodes of a job need the same port, and jobs that share a node different ones.
  port=$((PEERS_PORT + job % 1000))
  "${SCONTROL:-scontrol}" show hostnames "$nodes" | sed "s/\$/:$port/" >"$RUN_DIR/$job.members"
  peers=(FEEDD_PEERS__LISTEN="0.0.0.0:$port" FEEDD_PEERS__MEMBERS_FILE="$RUN_DIR/$job.members")
fi

as_user=()
((uid == EUID)) || as_user=(setpriv --reuid "$uid" --regid "$gid" --init-groups)

# A session of its own: Slurm kills the process group of a Prolog that has ended. setsid, setpriv and env replace
# themselves, so that $! is the daemon.
cd / || exit 0
setsid "${as_user[@]}" env -i HOME="$home" PATH="$PATH" "${OPTIONS[@]}" "${peers[@]}" \
  FEEDD_CACHE__DIR="$CACHE_ROOT/$job" "$FEEDD" serve --listen "unix://$socket" --log json </dev/null >"$log" 2>&1 &
pid=$!
echo "$pid" >"$RUN_DIR/$job.pid"

for ((tries = START_TIMEOUT_S * 10; tries > 0; tries--)); do
  [[ -S $socket ]] && exit 0
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.1
done
echo "prolog.sh: the daemon of job $job does not listen on $socket" >>"$log"
exit 0
