package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
)

// windowing is an attachment that records its calls of GiveWindow.
type windowing struct {
	queues.Attachment
	given chan string
	full  bool
}

func (w *windowing) GiveWindow(id pfvf.ID, cid uint32) error {
	if cid != 33 {
		return nil
	}
	if w.full {
		return errors.New("no room")
	}
	w.given <- id.String()
	return nil
}

// stubbornPort is an unused port whose device cannot be removed.
type stubbornPort struct {
	gateway.Device
	fd int
}

func (p *stubbornPort) OpenPort(*config.Port, func(func()) bool) (ports.Device, error) { return p, nil }

func (p *stubbornPort) USO() bool                { return false }
func (p *stubbornPort) Fault() string            { return "" }
func (p *stubbornPort) SetLink(bool) error       { return nil }
func (p *stubbornPort) Stats() gateway.PortStats { return gateway.PortStats{} }
func (p *stubbornPort) FD() int                  { return p.fd }
func (p *stubbornPort) Serve()                   {}
func (p *stubbornPort) Close() error             { return p.Remove() }
func (p *stubbornPort) Remove() error {
	return errors.Join(unix.Close(p.fd), errors.New("it does not go"))
}

// TestAFailureToFitIsLogged checks that a failure outside the functions is logged, and that nothing is logged if
// there is nothing to do or the NIC has stopped.
func TestAFailureToFitIsLogged(t *testing.T) {
	n, stop := runAlone(t, func(*config.Config) {})
	var told []string
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	must(t, err)
	n.fitter.mu.Lock()
	n.deps.Guests = &stubbornPort{fd: fd}
	n.fitter.guestLog = func(msg string, args ...any) { told = append(told, fmt.Sprint(append([]any{msg}, args...)...)) }
	n.fitter.mu.Unlock()
	expect := func(what string, want int) {
		t.Helper()
		n.fitter.mu.Lock()
		defer n.fitter.mu.Unlock()
		if len(told) != want || want > 0 && !strings.Contains(told[want-1], "it does not go") {
			t.Errorf("%s: told %q", what, told)
		}
	}
	n.fitter.Fit()
	expect("nothing to do", 0)
	for _, port := range []string{"type=vhost-user,socket=/nowhere/p.sock", "none"} {
		_, err = n.ChangeFunction(t.Context(), control.FunctionChange{Function: "pf0.vf1", Set: map[string]string{"port": port}})
		must(t, err)
		expect("port "+port, map[bool]int{true: 1}[port == "none"])
	}
	stop()
	n.fitter.Fit()
	expect("stopped", 1)
}

// TestWindowsFollowFunctions checks that a VF, and only that VF, gets a window when an operator or
// its PF enables it, and that the operator is told if it fails.
func TestWindowsFollowFunctions(t *testing.T) {
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(int, *config.Config) {})
	n := w.nics[0]
	at := &windowing{Attachment: n.deps.Attachments[0].Attachment, given: make(chan string, 100)}
	n.fitter.Fit() // those of the configuration
	n.fitter.mu.Lock()
	n.deps.Attachments = append(slices.Clone(n.deps.Attachments), Attachment{"g", at})
	n.fitter.mu.Unlock()
	vf9 := control.FunctionChange{Function: "pf0.vf4", Action: "enable", Set: map[string]string{"guest": "cid:33"}}
	if _, err := n.ChangeFunction(t.Context(), vf9); err != nil {
		t.Fatal(err)
	}
	n.fitter.Fit() // finds nothing to do
	if got := <-at.given; got != "h1.pf0.vf4" || len(at.given) != 0 {
		t.Errorf("a window for %s and %d others, want one for the function that was set", got, len(at.given))
	}
	id, _ := pfvf.ParseID("h1.pf0.vf2")
	changed := make(chan error, 1)
	if err := n.core.Do(func(falcon.Time) { // as a command of the PF's driver does
		n.core.Operate(id, &control.FunctionChange{Set: map[string]string{"guest": "cid:33"}}, func(err error) { changed <- err })
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if got := <-at.given; got != "h1.pf0.vf2" {
		t.Errorf("a window for %s", got)
	}
	n.fitter.mu.Lock()
	at.full = true
	n.fitter.mu.Unlock()
	if _, err := n.ChangeFunction(t.Context(), vf9); err == nil || err.Error() != "window of h1.pf0.vf4: no room" {
		t.Error(err)
	}
	n.fitter.mu.Lock()
	at.full = false
	n.fitter.mu.Unlock()
	n.fitter.Fit() // tries again what has failed
	if got := <-at.given; got != "h1.pf0.vf4" {
		t.Errorf("a window for %s", got)
	}
}
