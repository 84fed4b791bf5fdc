#!/bin/bash
# bounded SECONDS COMMAND: runs a shell command in a driver's test guest. If it has not ended after so
# many seconds, its threads are shown, what they wait for, and what RDMA objects there are, and it is
# killed: exit status 124. SIGTERM ends both.
set -m # each job is a process group

show() { # PROCESS
	echo "bounded: process $1 is still there:"
	for task in /proc/"$1"/task/*; do
		echo "thread ${task##*/} $(cat "$task/comm"): $(grep -E 'State|ctxt' "$task/status" | tr -s '\n\t' ' ')"
		echo "in $(cat "$task/wchan"), system call $(cat "$task/syscall")"
		cat "$task/stack"
	done
	rdma res show
	rdma res show qp
	rdma res show cm_id
	rdma statistic
	ss -tnp 2>/dev/null
}

bash -c "exec $2" </dev/null &
command=$!
(
	sleep "$1"
	show $command
	kill -KILL -- -$command
) &
clock=$!
trap 'kill -KILL -- -$command' TERM
wait $command
status=$?
if [ $status = 137 ]; then
	wait $clock
	exit 124
fi
exec 2>/dev/null # or bash tells of what it ends
kill -- -$clock
exit $status
