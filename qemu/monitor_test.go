package qemu

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// monitor is a fake monitor of QEMU. It answers queries from its table, and records the commands
// that change something.
type monitor struct {
	answers map[string]string // JSON, by command or, of qom-list and qom-get, by path and property
	refuses string            // a command
	events  []string          // JSON, in front of the answer to device_del; "": the monitor ends

	mu    sync.Mutex
	asked []string
}

// aGuest holds QEMU's answers for a guest with a vsock, a window plugged into the first of three
// root ports, another window from the start, and two interfaces.
func aGuest() map[string]string {
	list := func(entries ...string) string {
		var all []string
		for _, e := range entries {
			name, kind, _ := strings.Cut(e, " ")
			all = append(all, fmt.Sprintf(`{"name": %q, "type": %q}`, name, kind))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	return map[string]string{
		"query-name": `{"name": "g"}`, "query-status": `{"status": "running"}`, "query-version": `{"qemu": {"major": 7, "minor": 2, "micro": 22}}`,
		"query-kvm": `{"enabled": false}`, "query-cpus-fast": `[{}, {}]`,
		"query-memdev": `[{"id": "m0", "size": 67108864, "share": true}, {"id": "m1", "size": 1}]`,
		"/objects":     list("m1 child<memory-backend-file>", "m0 child<memory-backend-memfd>", "type string"),
		"query-chardev": `[{"label": "vsock", "filename": "unix:/run/g"}, {"label": "window-pf0.vf1", "filename": "disconnected:unix:/run/w"},
			{"label": "window-pf0.vf2", "filename": "unix:/run/w2"}]`,
		"/machine/peripheral": list("vsock child<vhost-user-vsock-pci>", "pf0.vf2 child<ivshmem-doorbell>", "pf0.vf1 child<ivshmem-doorbell>",
			"hot2 child<pcie-root-port>", "hot0 child<pcie-root-port>", "hot1 child<pcie-root-port>", "type string", "mouse child<usb-mouse>"),
		"/machine/peripheral-anon":                  list("device[0] child<virtio-net-pci>", "device[1] child<vfio-user-pci>"),
		"/machine/peripheral/vsock chardev":         `"vsock"`,
		"/machine/peripheral/pf0.vf1 chardev":       `"window-pf0.vf1"`,
		"/machine/peripheral/pf0.vf2 chardev":       `"window-pf0.vf2"`,
		"/machine/peripheral-anon/device[0] netdev": `"net0"`,
		"query-pci": `[{"devices": [
			{"qdev_id": "vsock", "slot": 29, "function": 0}, {"qdev_id": "pf0.vf2", "slot": 8, "function": 1},
			{"qdev_id": "hot0", "slot": 28, "function": 0, "pci_bridge": {"devices": [{"qdev_id": "pf0.vf1", "slot": 0, "function": 0}]}},
			{"qdev_id": "hot1", "slot": 28, "function": 1, "pci_bridge": {}}]}]`,
	}
}

// dial returns a client of the monitor, over a socket.
func (m *monitor) dial(t *testing.T) *QMP {
	t.Helper()
	ours, theirs, err := sockettest.New()
	if err != nil {
		t.Fatal(err)
	}
	return m.client(t, ours, theirs)
}

func (m *monitor) client(t *testing.T, ours, theirs net.Conn) *QMP {
	t.Helper()
	var played sync.WaitGroup
	played.Go(func() { m.play(theirs) })
	q, err := NewQMP(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = q.Close()
		played.Wait()
	})
	return q
}

func (m *monitor) play(conn net.Conn) {
	defer conn.Close()
	fmt.Fprintln(conn, `{"QMP": {"version": {}, "capabilities": []}}`)
	for sc := bufio.NewScanner(conn); sc.Scan(); {
		var c struct {
			Execute   string         `json:"execute"`
			Arguments map[string]any `json:"arguments"`
			ID        uint64         `json:"id"`
		}
		if json.Unmarshal(sc.Bytes(), &c) != nil {
			return
		}
		key := c.Execute
		if path, ok := c.Arguments["path"].(string); ok && strings.HasPrefix(c.Execute, "qom-") {
			if key = path; c.Arguments["property"] != nil {
				key += fmt.Sprint(" ", c.Arguments["property"])
			}
		} else if !strings.HasPrefix(c.Execute, "q") {
			args, _ := json.Marshal(c.Arguments) // what was read encodes
			m.mu.Lock()
			m.asked = append(m.asked, c.Execute+" "+string(args))
			m.mu.Unlock()
		}
		switch answer, known := m.answers[key]; {
		case c.Execute == m.refuses:
			fmt.Fprintf(conn, `{"error": {"class": "GenericError", "desc": "not today"}, "id": %d}`+"\n", c.ID)
			continue
		case known:
			fmt.Fprintf(conn, `{"return": %s, "id": %d}`+"\n", answer, c.ID)
			continue
		}
		fmt.Fprintf(conn, `{"return": {}, "id": %d}`+"\n", c.ID)
		if c.Execute != "device_del" {
			continue
		}
		for _, e := range m.events {
			if e == "" {
				return
			}
			fmt.Fprintln(conn, e)
		}
	}
}

// take returns the commands since the last call.
func (m *monitor) take() (asked []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked, m.asked = m.asked, nil
	return asked
}

func checkAsked(t *testing.T, what string, m *monitor, want ...string) {
	t.Helper()
	if got := m.take(); !slices.Equal(got, want) {
		t.Errorf("%s: asked\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func checkSays(t *testing.T, what string, err error, says string) {
	t.Helper()
	if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
		t.Errorf("%s: %v, want %q", what, err, says)
	}
}
