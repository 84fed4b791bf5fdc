package device

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// register reads a register over the stream.
func (c *rawClient) register(offset, width uint32) uint64 {
	c.t.Helper()
	c.send(abi.AppendStruct(nil, 9, &abi.RegRead{Offset: offset, Width: width}))
	for {
		h, body, err := c.receive()
		if err != nil {
			c.t.Fatal(err)
		}
		if h.Type != abi.MsgRegReply || h.Tag != 9 {
			continue
		}
		var r abi.RegReply
		r.Unmarshal(body)
		if r.Status != abi.StatusOK {
			c.t.Fatalf("register %#x: %s", offset, r.Status)
		}
		return r.Value
	}
}

func (c *rawClient) write(offset, width uint32, v uint64) {
	c.send(abi.AppendStruct(nil, 8, &abi.RegWrite{Offset: offset, Width: width, Value: v}))
}

// TestFaultIsReadable checks that the guest reads why its function stopped from the event and from
// RegFault, and that operators read it from the control socket.
func TestFaultIsReadable(t *testing.T) {
	w := newWorld(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	c := dialRaw(t, w.sockets[0])
	if r := c.hello(1<<16 | 2); r.Status != abi.StatusOK {
		t.Fatal(r.Status)
	}
	// Admin queues outside the memory that this client shares.
	c.write(abi.RegAdminSQ, 8, 1<<40)
	c.write(abi.RegAdminCQ, 8, 1<<40+abi.PageSize)
	c.write(abi.RegAdminEntries, 4, 16)
	c.write(abi.RegControl, 4, uint64(abi.ControlEnable))
	var e abi.AsyncEvent
	for e.Type != abi.EventFunctionFault {
		h, body, err := c.receive()
		if err != nil {
			t.Fatal(err)
		}
		if h.Type == abi.MsgAsyncEvent {
			e.Unmarshal(body)
		}
	}
	const want = "admin submission queue at 0x10000000000"
	if reason := abi.Text(e.Priv[:e.PrivLen]); abi.Fault(e.Status) != abi.FaultMemory || !strings.Contains(reason, want) {
		t.Errorf("event: %s, %q", abi.Fault(e.Status), reason)
	}
	if f := abi.Fault(c.register(abi.RegFault, 4)); f != abi.FaultMemory {
		t.Errorf("RegFault: %s", f)
	}
	if s := abi.State(c.register(abi.RegState, 4)); s != abi.StateError {
		t.Errorf("RegState: %s", s)
	}
	list, err := control.NewClient(w.nics[0].cfg.Control).Functions(context.Background())
	if err != nil || list[2].State != abi.StateError.String() || !strings.Contains(list[2].Fault, want) {
		t.Errorf("%+v, %v", list, err)
	}
	a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 9000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
}

// damagingUplink damages the last byte, a byte of the seal, of large frames while on.
type damagingUplink struct {
	tap.Uplink
	on *atomic.Int32 // number of frames still to damage
}

func (p *damagingUplink) Write(frames [][]byte, more bool) (int, error) {
	for i, f := range frames {
		if len(f) > 1000 && p.on.Add(-1) >= 0 {
			bad := append([]byte(nil), f...)
			bad[len(bad)-1] ^= 1
			frames[i] = bad
		}
	}
	return p.Uplink.Write(frames, more)
}

// TestDamageIsCounted checks that damaged frames are dropped, counted and sent again, and that the
// data arrives.
func TestDamageIsCounted(t *testing.T) {
	sw := fabric.New(devicetest.MTU)
	var damage atomic.Int32
	w := newWorldOn(t, func(name string) (tap.Uplink, error) {
		p, err := sw.Port(name)
		return &damagingUplink{p, &damage}, err
	})
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	damage.Store(5)
	write := guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 50_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	a.do(t, write)
	counters, err := control.NewClient(w.nics[1].cfg.Control).Counters(context.Background())
	if err != nil || counters["drop.psp_auth"] != 5 {
		t.Errorf("%d frames with a bad seal counted, want 5; %v", counters["drop.psp_auth"], err)
	}
	a.do(t, write)
}
