package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTheMachineIsDescribedFromTheKernelsFiles: the line has what the kernel's files say, and nothing of those that are not there.
func TestTheMachineIsDescribedFromTheKernelsFiles(t *testing.T) {
	root := t.TempDir()
	if got := machine(root); got != "" {
		t.Errorf("of nothing: %q", got)
	}
	for path, text := range map[string]string{
		"proc/cpuinfo":              "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t: fpu hypervisor\n\nprocessor\t: 1\nmodel name\t: AMD EPYC\nflags\t: fpu hypervisor\n",
		"proc/sys/kernel/osrelease": "6.18.44\n",
		"proc/loadavg":              "0.31 0.20 0.10 1/100 4711\n",
		"proc/meminfo":              "MemTotal: 1 kB\nHugePages_Total:     512\nHugePages_Free: 512\n",
		"sys/module/haltpoll/parameters/guest_halt_poll_ns":               "200000\n",
		"sys/module/kvm/parameters/halt_poll_ns":                          "0\n",
		"sys/kernel/mm/transparent_hugepage/enabled":                      "always [madvise] never\n",
		"sys/devices/system/cpu/cpuidle/current_governor":                 "haltpoll\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
		"sys/devices/system/cpu/cpu0/topology/thread_siblings_list":       "0-1\n",
		"sys/devices/system/cpu/cpu1/topology/thread_siblings_list":       "0-1\n",
		"sys/devices/system/cpu/vulnerabilities/l1tf":                     "Not affected\n",
		"sys/devices/system/cpu/vulnerabilities/spectre_v2":               "Mitigation: Retpolines; STIBP: disabled\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const want = "2 processors (AMD EPYC, virtual), of which share a core: 0-1; Linux 6.18.44; clock tsc; " +
		"huge pages madvise, 512 reserved; idle by haltpoll that polls for 200000 ns; polls for halted guests 0 ns; " +
		"mitigations spectre_v2 (Retpolines); load 0.31"
	if got := machine(root); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
