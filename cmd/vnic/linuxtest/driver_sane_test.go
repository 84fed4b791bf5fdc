package linuxtest_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// debugged says that the driver's guests have the kernel of guestlib/linux/debug-kernel.sh, which
// finds fault with drivers (make driver-debug).
var debugged = strings.Contains(os.Getenv("VNIC_DRIVER_KERNEL"), "/debug-kernel-")

// driverMemory is how many MiB the driver's guests have.
func driverMemory() int {
	if debugged {
		return 1536 // KASAN has shadows, and keeps what was freed
	}
	return 768
}

// slowly is how long something in the driver's guests may take that takes Debian's kernel so long.
func slowly(d time.Duration) time.Duration {
	if debugged {
		return 4 * d
	}
	return d
}

// complaints are words of a kernel that found fault with itself or with a driver, or that stopped
// looking for faults.
var complaints = regexp.MustCompile(`(?m)^.*(` + strings.Join([]string{
	"BUG:", "WARNING:", "Oops", "general protection", "Call Trace", "hung_task", "blocked for more", "refcount_t",
	"KASAN:", "UBSAN:", "ODEBUG:", "possible .*lock", "suspicious RCU", "sleeping function called", `list_\w+ corruption`,
	"DMA-API:.* (out of memory|disabl)", "turning off the locking", "lockdep is turned off",
}, "|") + `).*$`)

// sane fails if a kernel complained.
func (l *driverLab) sane(t testing.TB) {
	t.Helper()
	for _, g := range l.guests {
		g.t = t
		said, _ := g.run("dmesg")
		said = perftestCrash.ReplaceAllString(said, "")
		if at := complaints.FindStringIndex(said); at != nil {
			t.Errorf("%s: its kernel complains: %s\n%s", g.name, said[at[0]:at[1]], said[at[0]:])
		}
	}
}
