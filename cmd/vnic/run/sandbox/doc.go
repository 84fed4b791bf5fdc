// Package sandbox takes from a process what it does not need once it serves, and what an attacker
// who took it over through a guest's or a peer's bytes would use first:
//
//   - capabilities, but for those it is told to keep;
//   - new privileges by execve (no_new_privs);
//   - system calls that a NIC never makes: execve, new processes, mount, ptrace, bpf and
//     their like fail with EPERM (seccomp).
//
// It is a second line of defence: what the process has open stays open. A part that the kernel does
// not offer is left out, and Enter reports that.
//
// References: capabilities(7), prctl(2), seccomp(2).
package sandbox
