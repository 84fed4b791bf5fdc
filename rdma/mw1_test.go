package rdma

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestWindowType1 binds a window of type 1 by one queue pair, uses it by others of its protection
// domain, binds it elsewhere and frees it. (DEV-936)
func TestWindowType1(t *testing.T) {
	eachWire(t, func(t *testing.T) {
		p := newPair(t, true, 16384, worldConfig{}, qpConfig{})
		h := p.hosts[1]
		m, m2 := h.register(p.pd[1], 16384, bindable), h.register(p.pd[1], 16384, bindable)
		fill(p.ma.bytes(), 7)
		key, st := h.fn.AllocMW(&abi.AllocMW{PDN: p.pd[1], Type: abi.MWType1})
		ok(t, st)
		use := func(from *qp, key uint32, addr uint64, n int) abi.WCStatus {
			from.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: addr, RKey: key}, p.ma.sge(0, n))
			return from.send.wait(1)[0].Status
		}
		// another joins a queue pair of the same domain; it is used up by an error.
		another := func(pdn uint32) (from, to *qp) {
			from, to = p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(pdn, qpConfig{})
			p.connect(from, to, true)
			return from, to
		}
		bind := func(by *qp, b abi.BindMW) {
			t.Helper()
			key = incKey(key)
			by.postBind(key, b)
			success(t, by.send.wait(1))
		}
		bind(p.b, abi.BindMW{Addr: m.addr + 1000, Length: 5000, LKey: m.key, Access: verbs.RemoteRights})
		from, to := another(p.pd[1])
		for _, q := range []*qp{p.a, from} {
			clear(m.bytes())
			if st := use(q, key, m.addr+1000, 5000); st != abi.WCSuccess || !bytes.Equal(m.bytes()[1000:6000], p.ma.bytes()[:5000]) {
				t.Fatalf("%v, or other bytes", st)
			}
		}
		other, st := h.fn.AllocPD()
		ok(t, st)
		if x, _ := another(other); use(x, key, m.addr+1000, 8) != abi.WCRemAccessErr {
			t.Fatal("a queue pair of another domain may use it")
		}
		if st := h.fn.DeregMR(m.key); st != abi.StatusBusy {
			t.Fatalf("region with a window: %v", st)
		}

		// Bound elsewhere by another queue pair: the old key and the old place are over.
		old := key
		bind(to, abi.BindMW{Addr: m2.addr, Length: 8, LKey: m2.key, Access: abi.AccessRemoteWrite})
		ok(t, h.fn.DeregMR(m.key))
		if st := use(p.a, key, m2.addr, 8); st != abi.WCSuccess {
			t.Fatal(st)
		}
		for name, x := range map[string]struct {
			key uint32
			op  abi.Opcode
			at  uint64
		}{
			"the old key": {old, abi.OpWrite, m2.addr}, "behind its end": {key, abi.OpWrite, m2.addr + 1},
			"a right that it does not give": {key, abi.OpRead, m2.addr},
		} {
			q, _ := another(p.pd[1])
			q.post(abi.SendWQE{Opcode: x.op, Flags: abi.SendSignaled, RemoteAddr: x.at, RKey: x.key}, p.ma.sge(0, 8))
			if c := q.send.wait(1)[0]; c.Status != abi.WCRemAccessErr {
				t.Errorf("%s: %v", name, c.Status)
			}
		}

		// Neither the end of the queue pair that bound it nor keys made invalid end the binding.
		ok(t, h.fn.DestroyQP(p.now, to.number))
		_, r := another(p.pd[1])
		r.postInvalidate(key)
		if c := r.send.wait(1)[0]; c.Status != abi.WCMWBindErr {
			t.Errorf("LocalInv: %v", c.Status)
		}
		q, r := another(p.pd[1])
		r.receive(1, m2.sge(0, 100))
		q.post(abi.SendWQE{Opcode: abi.OpSendInv, Flags: abi.SendSignaled, Imm: key}, p.ma.sge(0, 8))
		if c := q.send.wait(1)[0]; c.Status != abi.WCRemAccessErr {
			t.Errorf("SendInv: %v", c.Status)
		}
		if st := use(p.a, key, m2.addr, 8); st != abi.WCSuccess {
			t.Fatal(st)
		}

		// What cannot be bound costs the queue pair, and leaves the window as it is.
		for name, b := range map[string]abi.BindMW{
			"by offsets":        {Addr: m2.addr, Length: 8, LKey: m2.key, Access: abi.AccessRemoteWrite | abi.AccessZeroBased},
			"behind the region": {Addr: m2.addr, Length: 16385, LKey: m2.key, Access: abi.AccessRemoteWrite},
			"a region gone":     {Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteWrite},
		} {
			_, r := another(p.pd[1])
			r.postBind(incKey(key), b)
			if c := r.send.wait(1)[0]; c.Status != abi.WCMWBindErr {
				t.Errorf("%s: %v", name, c.Status)
			}
		}
		if st := use(p.a, key, m2.addr, 8); st != abi.WCSuccess {
			t.Fatal(st)
		}

		old = key
		bind(p.b, abi.BindMW{}) // of no bytes: it is free
		ok(t, h.fn.DeregMR(m2.key))
		for _, k := range []uint32{old, key} {
			if q, _ := another(p.pd[1]); use(q, k, m2.addr, 8) != abi.WCRemAccessErr {
				t.Errorf("key %#x opens something", k)
			}
		}
		m3 := h.register(p.pd[1], 8, bindable)
		bind(p.b, abi.BindMW{Addr: m3.addr, Length: 8, LKey: m3.key, Access: abi.AccessRemoteRead})
		ok(t, h.fn.DeallocMW(key)) // bound as it is
		ok(t, h.fn.DeregMR(m3.key))
		if n := h.fn.Counts()[abi.ObjectMW]; n != 0 {
			t.Errorf("%d windows are left", n)
		}
	})
}
