package device

import (
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
)

// windowing is an attachment that notes who was given a window.
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

// TestWindowsFollowFunctions: whoever enables a VF, an operator or its PF, it is
// given a window, and it alone; the operator hears when it cannot be.
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
	n.fitter.Fit() // tries again what could not be had
	if got := <-at.given; got != "h1.pf0.vf4" {
		t.Errorf("a window for %s", got)
	}
}
