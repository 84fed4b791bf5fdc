package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// machine says in a line what figures depend on beside the code. It reads the kernel's files below
// root; what is not there is left out.
func machine(root string) string {
	read := func(path string) string {
		b, _ := os.ReadFile(filepath.Join(root, path))
		return strings.TrimSpace(string(b))
	}
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, strings.TrimSpace(name+" "+value))
		}
	}
	add("", processors(root, read("/proc/cpuinfo")))
	add("Linux", read("/proc/sys/kernel/osrelease"))
	add("clock", read("/sys/devices/system/clocksource/clocksource0/current_clocksource"))
	add("huge pages", hugePages(read("/sys/kernel/mm/transparent_hugepage/enabled"), read("/proc/meminfo")))
	idle, polls := read("/sys/devices/system/cpu/cpuidle/current_governor"), read("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
	if idle == "haltpoll" && polls != "" {
		idle += " that polls for " + polls + " ns"
	}
	add("idle by", idle)
	if polls := read("/sys/module/kvm/parameters/halt_poll_ns"); polls != "" {
		add("polls for halted guests", polls+" ns")
	}
	add("mitigations", mitigations(root))
	load, _, _ := strings.Cut(read("/proc/loadavg"), " ")
	add("load", load)
	return strings.Join(parts, "; ")
}

// processors tells how many there are, of which model, in a virtual machine or not, and which share
// a core.
func processors(root, cpuinfo string) string {
	count, model, virtual := 0, "", ""
	for line := range strings.Lines(cpuinfo) {
		name, value, _ := strings.Cut(line, ":")
		switch name, value = strings.TrimSpace(name), strings.TrimSpace(value); {
		case name == "processor":
			count++
		case name == "model name":
			model = value
		case name == "flags" && slices.Contains(strings.Fields(value), "hypervisor"):
			virtual = ", virtual"
		}
	}
	if count == 0 {
		return ""
	}
	var shared []string
	files, _ := filepath.Glob(filepath.Join(root, "/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if list := strings.TrimSpace(string(b)); strings.ContainsAny(list, ",-") && !slices.Contains(shared, list) {
			shared = append(shared, list)
		}
	}
	cores := "none of which are said to share a core"
	if len(shared) > 0 {
		slices.SortFunc(shared, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		cores = "of which share a core: " + strings.Join(shared, " and ")
	}
	return fmt.Sprintf("%d processors (%s%s), %s", count, model, virtual, cores)
}

// hugePages tells when the kernel gives programs transparent ones, and how many others are
// reserved.
func hugePages(enabled, meminfo string) string {
	_, rest, _ := strings.Cut(enabled, "[")
	when, _, _ := strings.Cut(rest, "]")
	for line := range strings.Lines(meminfo) {
		if reserved, ok := strings.CutPrefix(line, "HugePages_Total:"); ok {
			return strings.TrimPrefix(when+", "+strings.TrimSpace(reserved)+" reserved", ", ")
		}
	}
	return when
}

// mitigations are those in force, each with the first word on how.
func mitigations(root string) string {
	var on []string
	files, _ := filepath.Glob(filepath.Join(root, "/sys/devices/system/cpu/vulnerabilities/*"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if how, ok := strings.CutPrefix(string(b), "Mitigation: "); ok {
			how, _, _ = strings.Cut(how, ";")
			how, _, _ = strings.Cut(strings.TrimSpace(how), " ")
			on = append(on, filepath.Base(f)+" ("+how+")")
		}
	}
	if len(files) > 0 && len(on) == 0 {
		return "none"
	}
	return strings.Join(on, ", ")
}
