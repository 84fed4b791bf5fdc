package falcon_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// FuzzReceive lets a peer send anything to an engine with transactions in progress, and an upper
// layer answer anything. The engine must not panic, must deliver no request twice and nothing that
// no packet contained, and after closing the connection everything must be free again.
func FuzzReceive(f *testing.F) {
	push := wire.PushData{Header: wire.Header{Type: wire.TypePushData, PSN: 200, RSN: 7}, RequestLength: 8}
	pull := wire.PullRequest{Header: wire.Header{Type: wire.TypePullRequest, PSN: 500, RSN: 8}, RequestLength: 64}
	data := wire.Header{Type: wire.TypePullData, PSN: 201, RSN: 3}
	resync := wire.Resync{Header: wire.Header{Type: wire.TypeResync, PSN: 202, RSN: 9}, Code: 1, Original: wire.TypePushData}
	ack := wire.Ack{Extended: true, DataBase: 301, ReqBase: 101, DataRx: wire.Bitmap128{Lo: 6}, DataOWN: true}
	nack := wire.Nack{DataBase: 300, ReqBase: 100, PSN: 301, Code: wire.NackRNR, RNR: 1}
	var seed []byte
	for _, p := range [][]byte{append(push.Append(nil), make([]byte, 8)...), append(pull.Append(nil), make([]byte, 44)...), data.Append(nil), resync.Append(nil), ack.Append(nil), nack.Append(nil)} {
		seed = append(seed, byte(len(p)), 0)
		seed = append(seed, p...)
	}
	f.Add(seed, uint64(1))
	f.Add(seed, uint64(99))
	f.Fuzz(func(t *testing.T, script []byte, answers uint64) {
		node := credit.New(nil, credit.Cost{20, 500, 20, 500, 4, 100, 3, 3})
		rnd := random{seed: answers}
		ulp := &sim.ULP{}
		said := map[uint32][][]byte{} // by RSN: payloads of the packets received
		answered := map[uint32]bool{} // requests that the ULP was given and did not put off
		deliver := func(ev *falcon.Event, ready bool) {
			if answered[ev.RSN] {
				t.Errorf("RSN %d delivered twice", ev.RSN)
			}
			answered[ev.RSN] = ready
			if !slices.ContainsFunc(said[ev.RSN], func(b []byte) bool { return bytes.Equal(b, ev.Data) }) {
				t.Errorf("RSN %d: delivered %x, which no packet held", ev.RSN, ev.Data)
			}
		}
		ulp.OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
			what := rnd.intn(6)
			deliver(ev, what != 0)
			switch c := ev.Conn; what {
			case 0:
				c.NackPush(now, ev.RSN, wire.NackRNR, uint8(rnd.intn(40)), 0)
			case 1:
				code := wire.NackCode(rnd.intn(10))
				answered[ev.RSN] = code != wire.NackRNR
				c.NackPush(now, ev.RSN, code, 0, 1)
			case 2: // never answered
			default:
				c.AckPush(now, ev.RSN)
			}
		}
		ulp.OnPull = func(now falcon.Time, ev *falcon.Event, _ uint64) {
			what := rnd.intn(6)
			deliver(ev, what != 0)
			switch c := ev.Conn; what {
			case 0:
				c.RNRPull(now, ev.RSN, uint8(rnd.intn(40)))
			case 1:
				c.NackPush(now, ev.RSN, wire.NackCID, 0, 0)
			case 2:
			default:
				_ = c.RespondPull(now, ev.RSN, 1, rnd.intn(ev.Length+2))
			}
		}
		profile := testProfile()
		profile.MaxRetransmits = 2
		if answers%2 == 0 { // congestion control that moves, through queues
			profile.CC, profile.RUE = cc.NewSwift(cc.HardwareParams()), slow()
		}
		e := falcon.NewEngine(falcon.Config{Profile: profile, Credits: node, RxCells: 4, RxContexts: 6}, ulp)
		cfg := connConfig(answers%3 != 0)
		c, err := e.Open(ms, cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := ms
		var buf [8192]byte
		var ev falcon.Event
		issued, ended := 0, 0
		settle := func() {
			for e.Next(&ev) {
				switch ev.Kind {
				case falcon.EvPushDone, falcon.EvPullDone:
					ended++
				}
				ulp.HandleEvent(now, &ev)
			}
			for {
				if n, _ := e.Transmit(now, buf[:]); n == 0 {
					break
				}
			}
		}
		for len(script) >= 2 {
			n, op := int(script[0]), script[1]
			script = script[2:]
			packet := make([]byte, min(n, len(script)))
			script = script[copy(packet, script):]
			if op&1 != 0 && c.Push(now, 1, int(op)) == nil {
				issued++
			}
			if op&2 != 0 && c.Pull(now, 1, 44, int(op)) == nil {
				issued++
			}
			if op&4 == 0 {
				settle()
			}
			if len(packet) >= 8 && op&8 == 0 { // make it reach the connection
				binary.BigEndian.PutUint32(packet, 1<<28|cfg.LocalCID)
				if typ, _ := wire.Peek(packet); typ.HasBase() {
					binary.BigEndian.PutUint32(packet[4:], cfg.LocalFunction<<8|uint32(cfg.Protocol)<<5|uint32(packet[7])&0x1f)
				}
			}
			var h wire.PushData
			if typ, _ := wire.Peek(packet); typ == wire.TypePushData {
				if payload, d := h.Parse(packet); d == wire.DropNone {
					said[h.RSN] = append(said[h.RSN], payload)
				}
			} else if r, payload, d := wire.ParsePullRequest(packet); typ == wire.TypePullRequest && d == wire.DropNone {
				said[r.RSN] = append(said[r.RSN], payload)
			}
			e.Receive(now, falcon.Packet{Data: packet})
			if op&0xe0 == 0xe0 {
				c.Drain(now)
			}
			if op&16 != 0 {
				now += falcon.Time(op) * 100 * us
				e.Advance(now)
			}
			if op&4 == 0 {
				settle()
			}
		}
		settle()
		c.Close(now)
		settle()
		if issued != ended {
			t.Errorf("%d transactions issued, %d completed", issued, ended)
		}
		s := e.Stats()
		if s.TxContexts != 0 || s.RxContexts != 0 || s.RxCells != 0 || s.CreditErrors != 0 || node.InUse() != (credit.Cost{}) {
			t.Errorf("left behind: %d %d %d, credits %v", s.TxContexts, s.RxContexts, s.RxCells, node.InUse())
		}
	})
}

type random struct{ seed, n uint64 }

func (r *random) intn(n int) int { r.n++; return int(sim.Mix(r.seed+r.n) % uint64(n)) }
