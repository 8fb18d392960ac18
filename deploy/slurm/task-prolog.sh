#!/bin/bash
# TaskProlog= of slurm.conf: tells the tasks of a job where the daemon of their node is. Slurm sets what this prints.
conf=${FEEDD_SLURM_CONF:-/etc/feedd/feedd-slurm.conf}
[[ -r $conf ]] || exit 0
# shellcheck source=feedd-slurm.conf
source "$conf"

socket=$RUN_DIR/${SLURM_JOB_ID:-none}/feedd.sock
if [[ -z ${FEEDD_ADDRESS:-} && -S $socket ]]; then
  echo "export FEEDD_ADDRESS=unix://$socket"
fi
exit 0
