package controller

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/falcon-vnic/vnic/device/guest"
)

// Memory that the NIC itself needs, worker and supervisor: at the least, and under load.
const (
	leastMemory = 64 << 20
	ownMemory   = 192 << 20
)

// MemoryLimit is the lowest memory limit of this process's control groups.
type MemoryLimit struct {
	bytes uint64 // 0: none
	file  string // the file that sets the limit
}

// Names of files that hold a limit, in cgroup version 2 and version 1.
var (
	limitFiles2 = []string{"memory.max", "memory.high"}
	limitFiles1 = []string{"memory.limit_in_bytes"}
)

// ReadMemoryLimit reads the limits from the files that cgroups(7) describes, below root.
func ReadMemoryLimit(root string) (l MemoryLimit) {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return l
	}
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.SplitN(line, ":", 3)
		switch {
		case len(f) < 3:
		case f[1] == "":
			l.narrow(filepath.Join(root, "sys/fs/cgroup"), f[2], limitFiles2)
			l.narrow(filepath.Join(root, "sys/fs/cgroup/unified"), f[2], limitFiles2)
		case strings.Contains(","+f[1]+",", ",memory,"):
			l.narrow(filepath.Join(root, "sys/fs/cgroup/memory"), f[2], limitFiles1)
		}
	}
	return l
}

// narrow applies the limits of a group and of all its parents.
func (l *MemoryLimit) narrow(mount, group string, files []string) {
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		for _, name := range files {
			file := filepath.Join(mount, group, name)
			b, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			if err == nil && n < 1<<62 && (l.bytes == 0 || n < l.bytes) { // "max" means no limit, as do the huge numbers of version 1
				*l = MemoryLimit{n, file}
			}
		}
		if group == "/" {
			return
		}
	}
}

// Check returns an error if the limit is too low for a NIC to run.
func (l MemoryLimit) Check() error {
	if l.bytes != 0 && l.bytes < leastMemory {
		return fmt.Errorf("%s allows %d MiB of memory, and a NIC without guests needs %d: raise it (MemoryMax= of a systemd unit; docs/operations.md)", l.file, l.bytes>>20, uint64(leastMemory)>>20)
	}
	return nil
}

// GuestMemory adds up the memory of the attached guests. The kernel charges a page that a guest
// never touched to the NIC when the NIC accesses it first, so the limit has to cover it.
type GuestMemory struct {
	Limit MemoryLimit

	mu  sync.Mutex
	all map[*guest.Session]uint64
	max uint64 // largest need that a warning was given for
}

// Is records how much memory a session sees; 0: the session has ended. It returns a warning, or ""
// if there is no reason for one.
func (m *GuestMemory) Is(s *guest.Session, bytes uint64) (warning string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[*guest.Session]uint64{}
	}
	if m.all[s] = bytes; bytes == 0 {
		delete(m.all, s)
	}
	need := ownMemory + m.sum()
	if m.Limit.bytes == 0 || need <= max(m.Limit.bytes, m.max) {
		return ""
	}
	m.max = need
	return fmt.Sprintf("%s allows %d MiB, but the guests' memory and the NIC's own are %d MiB: the kernel may kill the NIC when it touches guest memory first; "+
		"raise MemoryMax, or give QEMU prealloc=on for its memory (docs/operations.md)", m.Limit.file, m.Limit.bytes>>20, need>>20)
}

// sum adds up the memory of all guests. The sessions of one guest see the same memory.
func (m *GuestMemory) sum() (total uint64) {
	guests := map[guest.Key]uint64{}
	for s, n := range m.all {
		if s.From.CID == 0 { // a client without a VM has memory of its own
			total += n
			continue
		}
		guests[s.From] = max(guests[s.From], n)
	}
	for _, n := range guests {
		total += n
	}
	return total
}
