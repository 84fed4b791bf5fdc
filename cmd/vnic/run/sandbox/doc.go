// Package sandbox takes from a process what it does not need once it serves: what an
// attacker who got into it through a guest's or a peer's bytes would reach for first.
//
//   - capabilities, but for those it is told to keep;
//   - new privileges by execve (no_new_privs);
//   - system calls that a NIC never makes: execve, new processes, mount, ptrace, bpf and
//     their like fail with EPERM (seccomp).
//
// It is a second line: what the process holds open stays open. Each part is taken where
// the kernel offers it, and Enter says which parts were not.
//
// References: capabilities(7), prctl(2), seccomp(2).
package sandbox
