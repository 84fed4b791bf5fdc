package shard

import (
	"errors"
	"fmt"
	"io"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// List reads the tape of a shard without running it, and calls f for what came in: frames, what drivers
// did, orders of the core, changes by operators. What the shard did with all that, only a replay shows,
// which needs the beginning of the recording.
func List(t *tape.Tape, f func(Note)) (err error) {
	defer func() {
		if t.TornIn() {
			err = nil
		}
	}()
	defer recoverAsError(t, &err)
	l := lister{t: t, f: f, drivers: map[uint64]string{}}
	for {
		steps := t.Steps()
		k, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case t.Steps() != steps:
			l.note("Steps %d to %d are missing", steps+1, t.Steps())
		}
		l.entry(k)
	}
}

// lister lists a tape.
type lister struct {
	t       *tape.Tape
	f       func(Note)
	drivers map[uint64]string // names of drivers, by their numbers
}

func (l *lister) note(format string, args ...any) {
	l.f(Note{l.t.Steps(), l.t.Now(), fmt.Sprintf(format, args...)})
}

// entry lists an entry.
func (l *lister) entry(k tape.Kind) {
	t := l.t
	switch k {
	case tape.Step:
		t.Begun(k)
		l.step()
	case tape.Flush:
		t.Begun(k)
		t.Uint()
	case tape.Attach, tape.Leave, tape.Listen, tape.Window, tape.Request:
		what := guest.List(t, k, l.drivers)
		l.note("%s", what)
	case tape.Order:
		var o order
		t.Value(&o)
		l.note("order of the core: %s", &o)
	case tape.Answer:
		t.Uint()
		var e *tapedError
		t.Value(&e)
		if e != nil {
			l.note("the core answers: %v", e)
		} else {
			l.note("the core answers")
		}
	case tape.VFAnswer:
		t.Uint()
		t.Uint()
		t.Bytes()
	case tape.Routes:
		t.Value(new(gateway.RouteChange))
		l.note("routes of plain IP change")
	case tape.View:
		var c change
		t.Value(&c)
		l.note("%s", &c)
	case tape.Functions:
		t.Value(new([]placed))
	case tape.Opened:
		l.opened()
	case tape.Taken:
		l.handedOver()
	default:
		t.Pass(k)
	}
}

// step lists the frames of a Step.
func (l *lister) step() {
	t := l.t
	t.Uint()
	for n := t.Uint(); n > 0; n-- {
		t.Uint() // what was sealed in it follows
		f := playFrame(t)
		if _, _, port := gateway.Head(f[min(gateway.EthernetLen, len(f)):], len(f)); port != underlay.SealedPort {
			l.note("in  %s", gateway.DescribeFrame(f, len(f)))
		}
	}
	for n := t.Uint(); n > 0; n-- {
		t.Uint()
	}
	for n := t.Uint(); n > 0; n-- {
		from := pfvf.ID(t.Uint())
		unpackOffload(t)
		lost := min(t.Uint(), maxFrame)
		f := t.GetPart()
		l.note("in  %s, by the port of %s", gateway.DescribeFrame(f, len(f)+int(lost)), from)
	}
}

// opened lists a packet of a peer.
func (l *lister) opened() {
	u, b, why := security.ListOpened(l.t)
	switch {
	case b == nil:
		l.note("in  a packet that is refused, reason %d", why)
	case u.Class == cm.ClassFalcon:
		if in := falconIn(b); in != nil { // in tunnel mode an IP header is in front
			b = in
		}
		l.note("in  %s, tenant %d", describeFalcon(b), u.Tenant)
	default:
		l.note("in  %s, tenant %d", gateway.Describe(b, len(b)), u.Tenant)
	}
}

// handedOver lists a frame of another shard.
func (l *lister) handedOver() {
	var f handover.Frame
	from, ok := (&tapedRings{t: l.t}).playTaken(&f)
	switch {
	case !ok:
	case f.Kind == handover.Local:
		l.note("in  %s, of shard %d", describeFalcon(f.Data), from)
	case f.Kind == handover.Plain:
		l.note("in  %s, of shard %d", gateway.DescribeFrame(f.Data, len(f.Data)), from)
	}
}
