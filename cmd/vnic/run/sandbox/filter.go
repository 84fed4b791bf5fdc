package sandbox

import "golang.org/x/sys/unix"

// denied lists system calls that a NIC never makes.
var denied = []uint32{
	// other programs and processes
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
	unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	// file systems and namespaces; setns stays, for ports in network namespaces
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_UNSHARE,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_QUOTACTL, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT,
	// programs and modules in the kernel, and parts of it that attackers often use
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	// the machine
	unix.SYS_REBOOT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_PERSONALITY,
	// identity
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
	unix.SYS_SETGROUPS, unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_CAPSET,
}

// Offsets of the fields of struct seccomp_data, on a little-endian machine.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16
)

// filter is the program that the kernel runs for each system call.
func filter() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	no := answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))

	prog := []unix.SockFilter{
		load(dataArch),
		jump(unix.BPF_JEQ, auditArch, 1, 0),
		no, // the system calls have other numbers there
		load(dataNumber),
		jump(unix.BPF_JGE, otherNumbers, 0, 1),
		no,
	}
	for _, nr := range append(denied, deniedHere...) {
		prog = append(prog, jump(unix.BPF_JEQ, nr, 0, 1), no)
	}
	return append(prog,
		jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1), // its flags are in memory; callers fall back to clone
		answer(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)),
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 3), // threads, but no processes
		load(dataArg0),
		jump(unix.BPF_JSET, unix.CLONE_THREAD, 1, 0),
		no,
		answer(unix.SECCOMP_RET_ALLOW),
	)
}
