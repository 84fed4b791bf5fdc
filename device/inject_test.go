package device

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/guestlib"
)

// TestAllDataCrossesAnImpairedUplink moves data between NICs on TAPs, with superframes, while their uplinks lose,
// reorder, repeat, damage and mark packets. All data arrives, and the counts agree with each other
// and with what the peer saw.
func TestAllDataCrossesAnImpairedUplink(t *testing.T) {
	auto := config.SuperframesAuto
	onTAPs(t, [2]string{auto, auto}, func(w *world) {
		inject := func(i int, direction, set string) control.Uplink {
			t.Helper()
			u, err := w.nics[i].InjectLink(t.Context(), control.LinkChange{Direction: direction, Set: []byte(set)})
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
		inject(0, "tx", `{"loss": 0.01, "reorder": 0.03, "duplicate": 0.01, "mark": 0.05, "seed": 3}`)
		inject(0, "rx", `{"loss": 0.01, "jitter_ns": 20000}`)
		inject(1, "rx", `{"corrupt": 0.01}`)
		x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
		connect(t, x, y, 1)
		from, to := x.mr.Bytes(), y.mr.Bytes()
		for i := range from {
			from[i] = byte(i * 2654435761 >> 13)
		}
		for range 4 {
			clear(to)
			x.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{x.mr.SGE(0, 4<<20)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
			if !bytes.Equal(to[:4<<20], from[:4<<20]) {
				t.Fatal("bytes differ")
			}
		}
		w.until("nothing under way", func() bool {
			for i := range w.nics {
				v, _ := w.nics[i].NIC(t.Context())
				u := v.Uplinks[0]
				for _, c := range []control.Impaired{u.RX.Counts, u.TX.Counts} {
					if c.Packets-c.Lost-c.Overflowed+c.Duplicated != c.Delivered {
						return false
					}
				}
			}
			return true
		})
		v, err := w.nics[0].NIC(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx, rx := v.Uplinks[0].TX.Counts, v.Uplinks[0].RX.Counts
		share := func(what string, n, of uint64, want float64) {
			t.Helper()
			if p := float64(n) / float64(of); p < want/3 || p > want*3 {
				t.Errorf("%s: %d of %d packets, want %v", what, n, of, want)
			}
		}
		share("lost", tx.Lost, tx.Packets, 0.01)
		share("reordered", tx.Reordered, tx.Packets, 0.03)
		share("duplicated", tx.Duplicated, tx.Packets, 0.01)
		share("marked", tx.Marked, tx.Packets, 0.05)
		if rx.Lost == 0 || rx.Overflowed+tx.Overflowed != 0 {
			t.Errorf("rx %+v, tx %+v", rx, tx)
		}
		const before = 100 // most packets that passed before, and in between
		left, came := w.counter(0, "uplink.tx_frames"), w.counter(1, "uplink.rx_frames")
		if left < tx.Delivered || left > tx.Delivered+before || came+before < left {
			t.Errorf("%d packets came through, %d left, the peer saw %d", tx.Delivered, left, came)
		}
		if w.counter(1, "impair.rx_corrupted") == 0 || w.counter(1, "drop.psp_auth") == 0 {
			t.Error("no damage was found")
		}
		if w.counter(0, "falcon.ecn_marked")+w.counter(1, "falcon.ecn_marked") == 0 {
			t.Error("no mark was seen")
		}
		if w.counter(0, "uplink.tx_superframes") == 0 {
			t.Error("no superframes left")
		}
	})
}

func TestInjectLinkRefuses(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		change control.LinkChange
		want   string
	}{
		{control.LinkChange{Uplink: "eth9"}, `unknown uplink "eth9"; use nic1`},
		{control.LinkChange{Direction: "up"}, `direction "up": write rx for what arrives, tx for what leaves, or nothing for both`},
		{control.LinkChange{Set: []byte(`{"loss": 2}`)}, "loss: 2 is not a share of packets; use 0 to 1"},
		{control.LinkChange{Set: []byte(`{"delay_ns": -1}`)}, "delay: -1ns is out of range; use 0s to 10s"},
		{control.LinkChange{Set: []byte(`{"los": 1}`)}, `set: json: unknown field "los"; give fields of an impairment as GET /v1/nic shows them`},
	} {
		if _, err := w.nics[0].InjectLink(t.Context(), tc.change); err == nil || err.Error() != tc.want {
			t.Errorf("%+v: %v, want %s", tc.change, err, tc.want)
		}
	}
	if u, _ := w.nics[0].InjectLink(t.Context(), control.LinkChange{Direction: "rx", Set: []byte(`{"loss": 1, "queue": 5}`)}); u.TX.Impairment.Loss != 0 || u.RX.Impairment.Loss != 1 {
		t.Errorf("%+v", u)
	}
	if u, _ := w.nics[0].InjectLink(t.Context(), control.LinkChange{Clear: true, Set: []byte(`{"mark": 1}`)}); u.RX.Impairment.Loss != 0 || u.RX.Impairment.Queue != 8192 || u.TX.Impairment.Mark != 1 {
		t.Errorf("%+v", u)
	}
}
