package guestinit

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestActiveOnlyAsInit(t *testing.T) {
	if Active() {
		t.Error("a test is no init")
	}
	name, _, _ := strings.Cut(Environment, "=")
	if name != "VNIC_GUEST" {
		t.Errorf("Active looks for another variable than %s", Environment)
	}
}

func TestCommandIsTheProgramOrAnother(t *testing.T) {
	for _, tc := range []struct{ args, want []string }{
		{nil, []string{"/init", "vnic"}},
		{[]string{"guest", "info"}, []string{"/init", "vnic", "guest", "info"}},
		{[]string{"/bin/driver", "x"}, []string{"/bin/driver", "/bin/driver", "x"}},
	} {
		program, argv := command(tc.args)
		if got := append([]string{program}, argv...); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.args, got, tc.want)
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	start := func(script string) int {
		p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Pid
	}
	start("exit 1") // somebody's orphan
	status, err := reapUntil(start("exit 7"))
	if err != nil || status.ExitStatus() != 7 {
		t.Errorf("%v, %v", status.ExitStatus(), err)
	}
	status, err = reapUntil(start("kill -9 $$"))
	if err != nil || status.Signal() != unix.SIGKILL {
		t.Errorf("%v, %v", status, err)
	}
}

func TestModulesThatCannotBeLoaded(t *testing.T) {
	if err := loadModule("/nonexistent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
