package vnictest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// KilledLeavesNothing runs a test of the package, and kills it once the given number of processes
// run whose command lines contain a text. The NICs, clients and guests that the test started must
// end too, and with them their network namespaces, TAPs and bridges.
func KilledLeavesNothing(t *testing.T, name, program string, count int) {
	t.Helper()
	temp, err := os.MkdirTemp("", "vk-") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(temp)
	entry := fmt.Sprintf("VNIC_KILLED_TEST=%d-%s", os.Getpid(), name)
	cmd := exec.Command(os.Args[0], "-test.run", "^"+name+"$")
	cmd.Env = append(os.Environ(), entry, "TMPDIR="+temp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	Eventually(t, program, func() error {
		select {
		case <-ended:
			t.Fatalf("it ended:\n%s", out.Bytes())
		default:
		}
		if n := running(entry, program); n < count {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	Eventually(t, "nothing left", func() error {
		if pids := Marked(entry); len(pids) > 0 {
			return fmt.Errorf("processes %v", pids)
		}
		return nil
	})
}

// running counts the processes with an environment entry whose command line contains a text.
func running(entry, text string) (n int) {
	for _, pid := range Marked(entry) {
		line, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
		if strings.Contains(string(line), text) {
			n++
		}
	}
	return n
}
