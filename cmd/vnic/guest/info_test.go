package guest_test

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// checkInfo checks what `vnic guest info --json` printed of a host's VF 1.
func checkInfo(t *testing.T, text string, h *vnictest.Host) {
	t.Helper()
	var info struct {
		Function, GID string
		Tenant, MTU   int
		Limits        struct{ MaxQP int }
	}
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if info.Function != "h1.pf0.vf1" || info.GID != h.TenantIP || info.Tenant != 100 || info.MTU != 4096 || info.Limits.MaxQP == 0 {
		t.Errorf("%+v", info)
	}
}

// TestInfoDescribesTheFunction runs vnic guest info as a bare client.
func TestInfoDescribesTheFunction(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		h := l.Hosts[0]
		text, stderr, code := vnictest.Run(t, "guest", "info", "--device", "unix://"+h.Socket)
		if want := `(?s)function +h1\.pf0\.vf1 .*\nGID +\S*192\.168\.100\.11\ntenant +100\npath MTU +4096\nlimits +256 QP, 512 CQ`; code != 0 || !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("exit status %d, %s\n%s", code, stderr, text)
		}
		l.Free(0)
		text, stderr, code = vnictest.Run(t, "guest", "info", "--json", "--device", "unix://"+h.Socket)
		if code != 0 {
			t.Fatal(stderr)
		}
		checkInfo(t, text, h)
	})
}
