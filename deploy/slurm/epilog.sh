#!/bin/bash
# Epilog= of slurm.conf: ends the daemon that prolog.sh started for the job, and deletes socket, log and cache.
# The exit code is always 0, because Slurm drains the node of an Epilog that fails.
set -u

conf=${FEEDD_SLURM_CONF:-/etc/feedd/feedd-slurm.conf}
[[ -r $conf ]] || exit 0
# shellcheck source=feedd-slurm.conf
source "$conf"

job=${SLURM_JOB_ID:-}
[[ $job =~ ^[0-9]+$ && -e $RUN_DIR/$job.pid ]] || exit 0

# The number may belong to another process by now. The command line of the daemon names the socket of the job.
pid=$(<"$RUN_DIR/$job.pid")
# It may end while it is looked at: that is no news.
runs() { { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF "unix://$RUN_DIR/$job/feedd.sock"; }

if [[ $pid =~ ^[0-9]+$ ]] && runs; then
  kill -TERM "$pid"
  for ((tries = STOP_TIMEOUT_S * 10; tries > 0; tries--)); do
    runs || break
    sleep 0.1
  done
  if runs; then
    kill -KILL "$pid"
    # It still writes for a moment. A zombie does not.
    lives() { [[ -d /proc/$pid ]] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$pid/status"; }
    for ((tries = 50; tries > 0; tries--)); do
      lives || break
      sleep 0.1
    done
  fi
fi

rm -rf -- "${RUN_DIR:?}/$job" "$RUN_DIR/$job.pid" "$RUN_DIR/$job.log" "$RUN_DIR/$job.members" "${CACHE_ROOT:?}/$job"
exit 0
