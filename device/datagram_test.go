package device

import (
	"testing"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestDatagramsAreAnsweredByTheAddressInTheGRH sends datagrams between real clients, of two NICs and of one, answers them
// by the address in the GRH, and continues after a wrong send.
func TestDatagramsAreAnsweredByTheAddressInTheGRH(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	for _, peer := range []struct {
		nic      int
		function string
	}{{1, "pf0.vf1"}, {0, "pf0.vf2"}} {
		a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(peer.nic, peer.function))
		var qps [2]*guestlib.QP
		for i, e := range []*endpoint{a, b} {
			var err error
			if qps[i], err = e.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: e.cq, Type: guestlib.UD, QKey: 7, MaxInline: 64}); err != nil {
				t.Fatal(err)
			}
			if err := qps[i].PostRecv(&guestlib.RecvWR{ID: 100, SGL: []guestlib.SGE{e.mr.SGE(0, 2048)}}); err != nil {
				t.Fatal(err)
			}
		}
		next := func(e *endpoint, id uint64) guestlib.WC {
			t.Helper()
			for {
				var wc [1]guestlib.WC
				n, err := e.cq.Poll(wc[:])
				if err != nil {
					t.Fatal(err)
				}
				if n == 0 {
					if err := e.cq.Wait(ctx); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if wc[0].ID == id {
					return wc[0]
				}
			}
		}
		send := func(e *endpoint, q *guestlib.QP, to guestlib.GID, qpn uint32, text string) *guestlib.AH {
			t.Helper()
			ah, err := e.pd.CreateAH(ctx, guestlib.AHConfig{GID: to, Path: guestlib.Path{HopLimit: 64}})
			if err == nil {
				err = q.PostSend(&guestlib.SendWR{ID: 1, Opcode: guestlib.Send, Flags: guestlib.Signaled, Inline: []byte(text), AH: ah, RemoteQPN: qpn, RemoteQKey: 7})
			}
			if err != nil {
				t.Fatal(err)
			}
			return ah
		}
		ah := send(a, qps[0], b.dev.GID(), qps[1].Num(), "who is there?")
		got := next(b, 100)
		from, err := guestlib.SourceGID(b.mr.Bytes())
		if err != nil || from != a.dev.GID() || got.Err() != nil || got.Flags&guestlib.WCWithGRH == 0 || got.SL != 0xa || string(b.mr.Bytes()[40:got.ByteLen]) != "who is there?" {
			t.Fatalf("%+v from %s, %v", got, from, err)
		}
		send(b, qps[1], from, got.SrcQP, "me")
		if got := next(a, 100); got.Err() != nil || string(a.mr.Bytes()[40:got.ByteLen]) != "me" {
			t.Fatalf("%+v", got)
		}
		wrong := guestlib.SendWR{ID: 2, Opcode: guestlib.Write, AH: ah, RemoteQPN: 5}
		if err := qps[0].PostSend(&wrong); err != nil {
			t.Fatal(err)
		}
		if wc := next(a, 2); wc.Status != abi.WCLocQPOpErr || qps[0].State() != abi.QPStateSQE {
			t.Fatalf("%+v, QP in %s", wc, qps[0].State())
		}
		if err := qps[0].Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if err := qps[1].PostRecv(&guestlib.RecvWR{ID: 101, SGL: []guestlib.SGE{b.mr.SGE(0, 2048)}}); err != nil {
			t.Fatal(err)
		}
		send(a, qps[0], b.dev.GID(), qps[1].Num(), "still there?")
		if got := next(b, 101); got.Err() != nil || got.ByteLen != 52 {
			t.Fatalf("%+v", got)
		}
		if err := ah.Destroy(ctx); err != nil {
			t.Fatal(err)
		}
		a.dev.Close()
		b.dev.Close()
	}
}
